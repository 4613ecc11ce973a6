"""redis-py's cluster client, unmodified, while nodes are restarted and replaced: sets keys and reads them back until a
file is there. See scripts/rolling-restart.

usage: rolling.py PORT FILE
"""
import os
import sys
import threading
import time

import redis

port, file = int(sys.argv[1]), sys.argv[2]
lock = threading.Lock()
commands, errors, longest = 0, 0, 0.0


def get(client, key, value):
    found = client.get(key)
    if found != value:
        raise ValueError(f"{key} is {found}, not {value}")


def run(worker):
    global commands, errors, longest
    # One each: where threads share one, two redirections at once may empty its list of a slot's nodes (IndexError, 5.0.8).
    client = redis.RedisCluster(host="127.0.0.1", port=port)
    n = 0
    while not os.path.exists(file):
        key, value = f"py-{worker}-{n % 1000}", b"%d" % n
        for call in (lambda: client.set(key, value), lambda: get(client, key, value)):
            began, failed = time.monotonic(), None
            try:
                call()
            except Exception as error:
                failed = error
            with lock:
                commands += 1
                longest = max(longest, time.monotonic() - began)
                if failed is not None:
                    errors += 1
                    print("redis-py:", repr(failed), file=sys.stderr)
            if failed is not None:
                break
        n += 1
        time.sleep(0.002)


threads = [threading.Thread(target=run, args=(worker,)) for worker in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"redis-py: {commands} commands, {errors} errors, longest {longest * 1000:.0f} ms")
sys.exit(errors > 0 or commands == 0)
