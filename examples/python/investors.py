import sys
import uuid
from pathlib import Path

import grpc
from google.rpc.error_details_pb2 import BadRequest
from grpc_status import rpc_status

from investor.v1.investor_pb2 import (
    INVESTOR_TYPE_INDIVIDUAL,
    CreateInvestorRequest,
    ListInvestorsRequest,
)
from investor.v1.investor_pb2_grpc import InvestorServiceStub

# By it, gRPC repeats each call, which survives a restart of the service within its deadline of 30
# seconds. A create is safe to repeat by its request id.
CONTRACT = Path(__file__).parents[2] / "proto/investor/v1"
CONFIG = CONTRACT / "investor_grpc_service_config_with_request_ids.json"

# Python has version 7, which keeps new records together, from 3.14 on.
new_uuid = getattr(uuid, "uuid7", uuid.uuid4)


def ada(**changes):
    content = dict(
        type=INVESTOR_TYPE_INDIVIDUAL,
        first_name="Ada",
        last_name="Lovelace",
        address_line1="12 St James Square",
        city="London",
        zip_code="SW1Y 4JH",
        country="gb",
        language="en",
    )
    return CreateInvestorRequest(**{**content, **changes})


def main(address="localhost:8080"):
    options = [("grpc.service_config", CONFIG.read_text())]
    with grpc.insecure_channel(address, options) as channel:
        stub = InvestorServiceStub(channel)

        request = ada(request_id=str(new_uuid()))
        created = stub.CreateInvestor(request)
        print("created", created.id)

        # With the same request id and content, a repeated call returns the record that is there.
        replayed = stub.CreateInvestor(request)
        print("replayed", replayed.id)

        try:
            stub.CreateInvestor(ada(country="England"))
        except grpc.RpcError as error:
            print("refused:", dict(error.trailing_metadata()).get("reason"))
            status = rpc_status.from_call(error)
            for detail in status.details if status else []:
                bad_request = BadRequest()
                if detail.Unpack(bad_request):
                    for violation in bad_request.field_violations:
                        print(f"{violation.field}: {violation.description}")

        count, page_token = 0, ""
        while True:
            page = stub.ListInvestors(ListInvestorsRequest(page_token=page_token))
            count += len(page.investors)
            page_token = page.next_page_token
            if not page_token:
                break
        print("listed", count)


if __name__ == "__main__":
    main(*sys.argv[1:])
