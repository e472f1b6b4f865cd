"""Uploads 10 MB at 100 KB a second, as often at once as asked, and prints the statuses as JSON."""

import concurrent.futures
import http.client
import json
import ssl
import sys
import time
import urllib.parse

url, token, ca, count = sys.argv[1:]
target = urllib.parse.urlsplit(url)
headers = {"Content-Type": "application/json", "Content-Length": "10000000"}
if token:
    headers["Authorization"] = f"Bearer {token}"


def body():
    start = time.monotonic()
    for i in range(1000):
        time.sleep(max(0, start + i / 10 - time.monotonic()))
        yield b"x" * 10_000


def upload(_):
    try:
        if target.scheme == "https":
            context = ssl.create_default_context(cafile=ca)
            connection = http.client.HTTPSConnection(target.netloc, context=context)
        else:
            connection = http.client.HTTPConnection(target.netloc)
        connection.request("POST", target.path, body(), headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    except Exception as error:
        return repr(error)


with concurrent.futures.ThreadPoolExecutor(int(count)) as pool:
    print(json.dumps(list(pool.map(upload, range(int(count))))))
