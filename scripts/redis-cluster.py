"""RedisCluster of redis-py on a cluster, one of whose nodes is killed and comes back: see scripts/redis-cluster."""

import os
import signal
import subprocess
import sys
import threading
import time

from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError, ResponseError, TimeoutError
from redis.retry import Retry

THREADS = 6
CALLS = 1500
# redis-py sends a call again by itself where its connection was lost, as with Redis: of the one call that each thread has
# under way when the node is killed, and when it is back, it may then have counted twice.
AGAIN = 2

collie, directory, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


def client():
    return RedisCluster(
        host="127.0.0.1",
        port=port,
        retry=Retry(ExponentialBackoff(cap=1, base=0.05), 12),
        cluster_error_retry_attempts=12,
        socket_timeout=15,
    )


def pid_of(node):
    wanted = f"{directory}/node-{node}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if b"node" in words and wanted in words:
                return int(name)
    sys.exit(f"node {node} has no process")


class Counter(threading.Thread):
    """Counts one key up. Where a call fails, whether it counted is not known."""

    def __init__(self, number):
        super().__init__()
        self.key = f"counter:{number}"
        self.done = self.unknown = 0
        self.failure = None

    def run(self):
        redis = client()
        while self.done + self.unknown < CALLS and self.failure is None:
            try:
                redis.incr(self.key)
                self.done += 1
            except (ConnectionError, TimeoutError):
                self.unknown += 1
            except ResponseError as error:
                if str(error).startswith("UNKNOWN"):
                    self.unknown += 1
                else:
                    self.failure = error
            except Exception as error:
                self.failure = error


redis = client()
redis.mset_nonatomic({f"many:{n}": n for n in range(200)})
assert redis.mget_nonatomic(*[f"many:{n}" for n in range(200)]) == [str(n).encode() for n in range(200)]
with redis.pipeline() as pipeline:
    for n in range(100):
        pipeline.set(f"piped:{n}", n).incr(f"piped:{n}")
    assert pipeline.execute()[1::2] == list(range(1, 101))
assert redis.set("{tag}a", 1) and redis.set("{tag}b", 2) and redis.mget("{tag}a", "{tag}b") == [b"1", b"2"]
assert len(redis.get_nodes()) == 3 and redis.cluster_keyslot("foo") == 12182

counters = [Counter(n) for n in range(THREADS)]
for counter in counters:
    counter.start()
while sum(counter.done for counter in counters) < THREADS * CALLS // 4:
    time.sleep(0.01)
os.kill(pid_of(2), signal.SIGKILL)
while sum(counter.done for counter in counters) < THREADS * CALLS // 2 and any(c.is_alive() for c in counters):
    time.sleep(0.01)
subprocess.run([collie, "cluster", "up", "--dir", directory], check=True, stdout=subprocess.DEVNULL)
for counter in counters:
    counter.join()
done = unknown = again = 0
for counter in counters:
    if counter.failure is not None:
        sys.exit(f"{counter.key}: {counter.failure!r}")
    if counter.done + counter.unknown != CALLS:
        sys.exit(f"{counter.key}: expected {CALLS} calls, found {counter.done + counter.unknown}")
    value = int(client().get(counter.key))
    if not counter.done <= value <= counter.done + counter.unknown + AGAIN:
        sys.exit(f"{counter.key}: {counter.done} acknowledged, {counter.unknown} unknown, found {value}")
    done, unknown = done + counter.done, unknown + counter.unknown
    again += max(0, value - counter.done - counter.unknown)
print(f"figures: redis-py counted {done} times, {unknown} unknown, {again} by its own repetition; one node killed; none lost")
