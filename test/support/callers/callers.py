"""Calls the service by gRPC as main.go does: for each line of standard input."""

import sys
import threading

import grpc

service = "/investor.v1.InvestorService/"
_, _, addresses, config_file, ca_file = sys.argv
with open(config_file) as file:
    config = file.read()
options = [
    ("grpc.default_authority", "localhost"),
    ("grpc.ssl_target_name_override", "localhost"),
    ("grpc.service_config", config),
]
if ca_file:
    with open(ca_file, "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    channel = grpc.secure_channel(f"ipv4:{addresses}", credentials, options)
else:
    channel = grpc.insecure_channel(f"ipv4:{addresses}", options)
create = channel.unary_unary(service + "CreateInvestor")
get = channel.unary_unary(service + "GetInvestor")
reading, printing = threading.Lock(), threading.Lock()


def read():
    with reading:
        return sys.stdin.readline()


def call():
    for request in iter(read, ""):
        try:
            record = create(bytes.fromhex(request))
            # The id is the first field of the record, and the only one of the request.
            get(record[:38])
            line = record[2:38].decode()
        except grpc.RpcError as error:
            line = f"{error.code()} {error.details()}"
        with printing:
            print(line, flush=True)


callers = [threading.Thread(target=call) for _ in range(16)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
