"""Four clients of an nginx on Unix sockets, one of them with TLS, until a file appears.

Each checks every answer: its status, its length and its text, compressed or not. A connection is used
for one request only, so that a worker that leaves never has an idle one to close.
"""

import gzip
import http.client
import os
import random
import socket
import ssl
import sys
import threading

directory, stop = sys.argv[1:]
texts = {name: open(f"{directory}/html/{name}.html", "rb").read() for name in ("small", "middle", "large")}
right = [0] * 4
errors = []


class Connection(http.client.HTTPConnection):
    def __init__(self, tls):
        super().__init__("localhost", timeout=60)
        self.tls = tls

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(f"{directory}/http{'s' if self.tls else ''}.sock")
        if self.tls:
            context = ssl.create_default_context(cafile=f"{directory}/certificate.pem")
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")


def ask(choice, number):
    name = choice.choice(list(texts))
    where = choice.choice(("", "proxied/", "cached/", "echo/", "missing/"))
    path, wanted, status = f"/{where}{name}.html", texts[name], 200
    if where == "echo/":
        word = "".join(choice.choices("abcdefgh", k=choice.randrange(1, 900)))
        path, wanted = f"/echo/{word}/{name}", f"{word}:{name}:GET\n".encode()
    elif where == "missing/":
        status, wanted = 404, None
    connection = Connection(tls=number == 3)
    headers = {"Connection": "close"}
    if choice.random() < 0.5:
        headers["Accept-Encoding"] = "gzip"
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    if answer.getheader("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    connection.close()
    if answer.status != status or (wanted is not None and body != wanted):
        raise ValueError(f"{path}: {answer.status}, {len(body)} bytes: {body[:60]}")


def work(number):
    choice = random.Random(number)
    try:
        while right[number] < 50 or not os.path.exists(stop):
            ask(choice, number)
            right[number] += 1
    except Exception as error:
        errors.append(f"client {number}, request {right[number]}: {error!r}")


threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{right} answers")
print("\n".join(errors) if errors else "all answers are right")
sys.exit(len(errors))
