"""The reference server against the specification's own OpenAPI file.

Requests are generated from the file, right and wrong ones; the answers are judged by its statuses, media types,
headers and schemas. Half of the requests are led to an endpoint and a job that exist.
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
known: dict[str, str] = {}


@schema.hook
def map_path_parameters(context, path_parameters):
    """Random names and ids find nothing: half of them become ones that exist."""
    if path_parameters and rng.random() < 0.5:
        return {name: known.get(name, value) for name, value in path_parameters.items()}
    return path_parameters


@pytest.fixture(scope="module")
def url():
    server = Server(max_body_bytes=20_000, heartbeat=0.2, shutdown_timeout=0.1)

    @server.endpoint
    def double(n: int = 1) -> int:
        return 2 * n

    with server.running() as running:
        job = httpx.post(f"{running}/v1/endpoints/double/jobs", json={"input": {}}).json()["id"]
        known.update(name="double", id=job)
        assert "done" in httpx.get(f"{running}/v1/jobs/{job}/events").text
        yield running


@pytest.mark.timeout(120)
@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_each_answer_is_one_that_the_file_describes(case, url):
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)
