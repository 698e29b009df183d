"""Builds and drops many small objects: what a service written in Python does with memory all day.

N records are made as instances, turned into dicts, to JSON and back, grouped, sorted and dropped, some of them by
the cycle collector; then four threads do the same with a quarter each. It fails if a record was lost on the way.
"""

import json
import sys
import threading


class Record:
    def __init__(self, i, parent):
        self.id = i
        self.name = "record-%d" % i
        self.tags = ["t%d" % (i % k) for k in (3, 7, 31)]
        self.scores = [i * 0.5, i * 0.25, float(i)]
        self.parent = parent
        # Every eighth is in a cycle, and is freed by the collector alone.
        self.me = self if i % 8 == 0 else None


def as_dict(record):
    return {
        "id": record.id,
        "name": record.name,
        "tags": record.tags,
        "scores": record.scores,
        "nested": {"a": {"b": [record.id, {"c": record.name}]}},
    }


def work(n):
    records, last = [], None
    for i in range(n):
        last = Record(i, last if i % 16 else None)
        records.append(last)
    dicts = [as_dict(record) for record in records]
    del records, last
    # Every second goes first, so that what stays lies scattered.
    kept = dicts[::2] + dicts[1::2]
    del dicts
    text = "\n".join(json.dumps(one) for one in kept)
    del kept
    back = [json.loads(line) for line in text.split("\n")] if text else []
    groups = {}
    for one in back:
        groups.setdefault(one["tags"][2], []).append(one["name"].upper() + text[:64])
    for names in groups.values():
        names.sort(reverse=True)
    return sum(one["nested"]["a"]["b"][0] for one in back)


def expect(got, n):
    if got != n * (n - 1) // 2:
        sys.exit("objects.py: records were lost: %d of %d" % (got, n))


def main():
    n = int(sys.argv[1])
    for _ in range(2):
        expect(work(n), n)
    sums = []
    threads = [threading.Thread(target=lambda: sums.append(work(n // 4))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got in sums:
        expect(got, n // 4)
    if len(sums) != 4:
        sys.exit("objects.py: a thread failed")


main()
