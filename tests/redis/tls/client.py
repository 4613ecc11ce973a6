"""Redis' client for Python over TLS. See scripts/tls-clients.

usage: client.py PORT CA WRONG_CA CERTIFICATE KEY
"""
import sys

import redis

port, ca, wrong, certificate, key = int(sys.argv[1]), *sys.argv[2:6]


def connect(ca, **more):
    return redis.Redis(
        host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=ca, ssl_check_hostname=True, **more
    )


def check(what, holds):
    if not holds:
        sys.exit(f"redis-py: {what} failed")
    print(f"check redis-py: {what}")


client = connect(ca)
check("SET", client.set("py", "1") is True)
check("GET", client.get("py") == b"1")

pipeline = client.pipeline(transaction=False)
for i in range(100):
    pipeline.set(f"py{i}", i)
    pipeline.get(f"py{i}")
check("a pipeline", pipeline.execute() == [reply for i in range(100) for reply in (True, b"%d" % i)])

transaction = client.pipeline(transaction=True)
transaction.watch("py")
transaction.multi()
transaction.incr("py")
transaction.get("py")
check("a transaction", transaction.execute() == [2, b"2"])

large = bytes(range(256)) * (1 << 14)
check("a value of 4 MiB", client.set("large", large) and client.get("large") == large)

own = connect(ca, ssl_certfile=certificate, ssl_keyfile=key)
check("a client's certificate", own.get("py") == b"2")

try:
    connect(wrong).ping()
    check("a wrong CA is refused", False)
except redis.exceptions.ConnectionError as error:
    check("a wrong CA is refused", "certificate verify failed" in str(error).lower())

try:
    redis.Redis(host="127.0.0.1", port=port).ping()
    check("a client without TLS is refused", False)
except redis.exceptions.RedisError:
    # It drops the answer to the first command that it sends by itself, and with it the reason.
    check("a client without TLS is refused", True)
