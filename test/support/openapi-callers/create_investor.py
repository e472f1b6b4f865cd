"""Creates a record by the client that is generated from openapi.json."""

import sys

from investor_records_client import Client
from investor_records_client.api.investors import create_investor
from investor_records_client.models import Investor, InvestorContent, InvestorType

content = InvestorContent(
    type_=InvestorType.INSTITUTION,
    first_name="",
    middle_name="",
    last_name="Example Capital",
    address_line_1="1 Main Street",
    address_line_2="",
    city="Springfield",
    state="IL",
    zip_code="62701",
    country="us",
    language="en",
)
investor = create_investor.sync(client=Client(base_url=sys.argv[1]), body=content)
if not isinstance(investor, Investor):
    raise SystemExit(f"not stored: {investor}")
print(investor.type_, investor.last_name)
