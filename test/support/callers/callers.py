"""Calls the service by gRPC as main.go does: without a pause until its standard input ends."""

import json
import sys
import threading

import grpc

service = "/investor.v1.InvestorService/"
config = {"loadBalancingConfig": [{"round_robin": {}}]}
_, _, addresses, request, ca_file = sys.argv
options = [
    ("grpc.default_authority", "localhost"),
    ("grpc.ssl_target_name_override", "localhost"),
    ("grpc.service_config", json.dumps(config)),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
]
if ca_file:
    with open(ca_file, "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    channel = grpc.secure_channel(f"ipv4:{addresses}", credentials, options)
else:
    channel = grpc.insecure_channel(f"ipv4:{addresses}", options)
create = channel.unary_unary(service + "CreateInvestor")
get = channel.unary_unary(service + "GetInvestor")
ended = threading.Event()
created, failures = [], []


def call():
    while not ended.is_set():
        try:
            record = create(bytes.fromhex(request), wait_for_ready=True)
            # The id is the first field of the record, and the only one of the request.
            get(record[:38], wait_for_ready=True)
            created.append(record[2:38])
        except grpc.RpcError as error:
            failures.append(f"{error.code()} {error.details()}")


callers = [threading.Thread(target=call) for _ in range(16)]
for caller in callers:
    caller.start()
sys.stdin.read()
ended.set()
for caller in callers:
    caller.join()
print(json.dumps({"created": len(created), "failures": failures}))
