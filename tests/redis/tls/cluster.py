"""redis-py's client of Redis Cluster over TLS. See scripts/tls-clients.

usage: cluster.py PORT CA
"""
import sys
import time

import redis

port, ca = int(sys.argv[1]), sys.argv[2]
keys = [f"key{i}" for i in range(100)]
# A new cluster serves once its partitions have leaders.
for _ in range(100):
    try:
        cluster = redis.RedisCluster(
            host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=ca, ssl_check_hostname=True
        )
        for key in keys:
            cluster.set(key, "first")
        break
    # It indexes the list of masters, which is empty at first.
    except (redis.exceptions.RedisError, IndexError) as error:
        problem = error
        time.sleep(0.2)
else:
    sys.exit(f"redis-py: the cluster does not serve: {problem}")


def check(what, holds):
    if not holds:
        sys.exit(f"redis-py, cluster: {what} failed")
    print(f"check redis-py, cluster: {what}")


check("SET on all partitions", all(cluster.set(key, key) for key in keys))
check("GET", all(cluster.get(key) == key.encode() for key in keys))
check("CLUSTER SLOTS has the port of TLS", {node.port for node in cluster.get_nodes()} == {port})
