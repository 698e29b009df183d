"""Eight clients of a memcached on a Unix socket, each in a process of its own with keys of its own.

Each keeps a copy of what it stored. A value that comes back must be the copy; with "all" as second
argument every value must come back, with "some" those that the server has not evicted. The program
writes a line when all of them agree and the server's own counters do.
"""

import multiprocessing
import random
import socket
import sys

CLIENTS = 8
STEPS = 2500


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def ask(self, line, value=None):
        message = line.encode() + b"\r\n" + (b"" if value is None else value + b"\r\n")
        self.socket.sendall(message)

    def line(self):
        return self.file.readline().rstrip(b"\r\n").decode()

    def values(self):
        found = {}
        while (head := self.line()) != "END":
            _, key, _, size, *cas = head.split()
            found[key] = (self.file.read(int(size)), cas[0] if cas else None)
            assert self.file.read(2) == b"\r\n"
        return found

    def stats(self):
        self.ask("stats")
        found = {}
        while (head := self.line()) != "END":
            _, name, value = head.split(" ", 2)
            found[name] = value
        return found


def value(choice, seed):
    # Mostly small values; some large enough for an item of chained chunks.
    size = choice.choice((0, 10, 60, 300, 1000, 5000, 20000)) if choice.random() < 0.99 else 700000
    return (b"%d " % seed) * (size // len(b"%d " % seed))


def expect(got, wanted):
    if got != wanted:
        raise SystemExit(f"{str(got)[:100]} is not {str(wanted)[:100]}")


def store(client, mine, key, everything):
    # A server short of memory may refuse a value, and may keep the old one.
    answer = client.line()
    if answer != "STORED" and not everything:
        client.ask(f"delete {key}")
        client.line()
        mine.pop(key)
    else:
        expect(answer, "STORED")


def work(path, number, everything):
    choice = random.Random(number)
    client = Client(path)
    mine = {}
    for step in range(STEPS):
        key = f"c{number}-{choice.randrange(400)}"
        kind = choice.randrange(12)
        if kind < 5:
            mine[key] = value(choice, step)
            client.ask(f"set {key} 0 0 {len(mine[key])}", mine[key])
            store(client, mine, key, everything)
        elif kind < 9:
            keys = [key] + [f"c{number}-{choice.randrange(400)}" for _ in range(choice.randrange(20))]
            client.ask("gets " + " ".join(dict.fromkeys(keys)))
            found = client.values()
            for name, (got, _) in found.items():
                expect(got, mine.get(name))
            if everything:
                expect(set(found), {k for k in keys if k in mine})
        elif kind == 9:
            client.ask(f"append {key} 0 0 5", b"tail!")
            stored = client.line() == "STORED"
            expect(stored == (key in mine) or not everything, True)
            if stored:
                mine[key] += b"tail!"
            elif key in mine:
                client.ask(f"delete {key}")
                client.line()
                mine.pop(key)
        elif kind == 10:
            client.ask(f"delete {key}")
            gone = client.line() == "DELETED"
            expect(gone == (key in mine) or not everything, True)
            mine.pop(key, None)
        else:
            client.ask(f"gets {key}")
            if (found := client.values()).get(key):
                mine[key] = value(choice, step)
                client.ask(f"cas {key} 0 0 {len(mine[key])} {found[key][1]}", mine[key])
                store(client, mine, key, everything)
    names = list(mine)
    for n in range(0, len(names), 50):
        client.ask("get " + " ".join(names[n : n + 50]))
        found = client.values()
        for name, (got, _) in found.items():
            expect(got, mine[name])
        expect(len(found) == len(names[n : n + 50]) or not everything, True)


def main():
    path, kind = sys.argv[1:]
    everything = kind == "all"
    workers = [multiprocessing.Process(target=work, args=(path, n, everything)) for n in range(CLIENTS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    expect([worker.exitcode for worker in workers], [0] * CLIENTS)
    stats = Client(path).stats()
    expect(int(stats["evictions"]) == 0, everything)
    expect(int(stats["get_hits"]) > CLIENTS * STEPS // 10, True)
    print(f"{CLIENTS} clients read what they wrote, {kind} of it")


if __name__ == "__main__":
    main()
