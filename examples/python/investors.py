import sys
import uuid

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status

from investor.v1.investor_pb2 import (
    INVESTOR_TYPE_INDIVIDUAL,
    CreateInvestorRequest,
    ListInvestorsRequest,
)
from investor.v1.investor_pb2_grpc import InvestorServiceStub

# The deadline of every call in seconds, above the timeout of the service, which replies with a reason.
TIMEOUT = 15

# Python has version 7, which keeps new records together, from 3.14 on.
new_uuid = getattr(uuid, "uuid7", uuid.uuid4)


def ada(**changes):
    content = dict(
        type=INVESTOR_TYPE_INDIVIDUAL,
        first_name="Ada",
        middle_name="",
        last_name="Lovelace",
        address_line1="12 St James Square",
        address_line2="",
        city="London",
        state="",
        zip_code="SW1Y 4JH",
        country="gb",
        language="en",
    )
    return CreateInvestorRequest(**{**content, **changes})


def main(address="localhost:50051"):
    with grpc.insecure_channel(address) as channel:
        stub = InvestorServiceStub(channel)

        request = ada(request_id=str(new_uuid()))
        created = stub.CreateInvestor(request, timeout=TIMEOUT)
        print("created", created.id)

        # With the same request id and content, a repeated call returns the record that is there.
        replayed = stub.CreateInvestor(request, timeout=TIMEOUT)
        print("replayed", replayed.id)

        try:
            stub.CreateInvestor(ada(country="England"), timeout=TIMEOUT)
        except grpc.RpcError as error:
            print("refused:", error.details())
            status = rpc_status.from_call(error)
            for detail in status.details if status else []:
                info, bad_request = ErrorInfo(), BadRequest()
                if detail.Unpack(info):
                    print("reason:", info.reason)
                elif detail.Unpack(bad_request):
                    for violation in bad_request.field_violations:
                        print(f"{violation.field}: {violation.description}")

        count, page_token = 0, ""
        while True:
            page = stub.ListInvestors(ListInvestorsRequest(page_token=page_token), timeout=TIMEOUT)
            count += len(page.investors)
            page_token = page.next_page_token
            if not page_token:
                break
        print("listed", count)


if __name__ == "__main__":
    main(*sys.argv[1:])
