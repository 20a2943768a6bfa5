"""The reference server conforms to the OpenAPI file of the specification.

Schemathesis generates valid and invalid requests from the file and checks the responses against its statuses,
media types, headers and schemas. Half of the requests go to an existing endpoint and job.
"""

import random
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tidewire_server import Server  # noqa: E402

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
schema = schemathesis.openapi.from_path(Path(__file__).parents[2] / "spec/openapi.yaml")
rng = random.Random(7)
existing_ids: dict[str, str] = {}


@schema.hook
def map_path_parameters(context, path_parameters):
    """Replace half of the random names and ids by existing ones; random values never exist on the server."""
    if path_parameters and rng.random() < 0.5:
        return {name: existing_ids.get(name, value) for name, value in path_parameters.items()}
    return path_parameters


@pytest.fixture(scope="module")
def url():
    server = Server(max_body_bytes=20_000, heartbeat=0.2, shutdown_timeout=0.1)

    @server.endpoint
    def double(n: int = 1) -> int:
        return 2 * n

    with server.running() as running:
        job = httpx.post(f"{running}/v1/endpoints/double/jobs", json={"input": {}}).json()["id"]
        existing_ids.update(name="double", id=job)
        assert "done" in httpx.get(f"{running}/v1/jobs/{job}/events").text
        yield running


@pytest.mark.timeout(120)
@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_each_response_conforms_to_the_openapi_file(case, url):
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)
