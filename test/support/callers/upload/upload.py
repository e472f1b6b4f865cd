"""Uploads 10 MB at 100 KB a second, as often at once as asked, and prints the statuses as JSON."""

import http.client
import json
import ssl
import sys
import threading
import time
import urllib.parse

url, token, ca, count = sys.argv[1:]
target = urllib.parse.urlsplit(url)
headers = {"Content-Type": "application/json", "Content-Length": "10000000"}
if token:
    headers["Authorization"] = f"Bearer {token}"
statuses = []


def body():
    start = time.monotonic()
    for i in range(1000):
        time.sleep(max(0, start + i / 10 - time.monotonic()))
        yield b"x" * 10_000


def upload():
    try:
        if target.scheme == "https":
            context = ssl.create_default_context(cafile=ca)
            connection = http.client.HTTPSConnection(target.netloc, context=context)
        else:
            connection = http.client.HTTPConnection(target.netloc)
        connection.request("POST", target.path, body(), headers)
        reply = connection.getresponse()
        reply.read()
        statuses.append(reply.status)
    except Exception as error:
        statuses.append(repr(error))


threads = [threading.Thread(target=upload) for _ in range(int(count))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(statuses))
