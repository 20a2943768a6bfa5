"""The reference server conforms to the OpenAPI file of the specification.

Schemathesis generates valid and invalid requests from the file and checks the responses against its statuses,
media types, headers and schemas. Half of the requests go to an existing endpoint and job.
"""

import random
from pathlib import Path

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tidewire_server import Server

FILE = Path(__file__).parents[2] / "spec/openapi.yaml"
existing_ids: dict[str, str] = {}


@pytest.fixture(scope="module")
def url():
    server = Server(max_body_bytes=20_000, heartbeat=0.2, shutdown_timeout=0.1)

    @server.endpoint
    def double(n: int = 1) -> int:
        return 2 * n

    with server.running() as running:
        job = httpx2.post(f"{running}/v1/endpoints/double/jobs", json={"input": {}}).json()["id"]
        existing_ids.update(name="double", id=job)
        assert "done" in httpx2.get(f"{running}/v1/jobs/{job}/events").text
        yield running


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_each_response_conforms_to_the_openapi_file(url, mode, count):
    # Imported here, because to import the package takes a second.
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    expected = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    schema = schemathesis.openapi.from_path(FILE)
    rng = random.Random(7)

    @schema.hook
    def map_path_parameters(context, path_parameters):
        """Replace half of the random names and ids by existing ones; random values never exist on the server."""
        if path_parameters and rng.random() < 0.5:
            return {name: existing_ids.get(name, value) for name, value in path_parameters.items()}
        return path_parameters

    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) == 10
    for operation in operations:

        @settings(
            max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
        )
        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        def check(case):
            case.call_and_validate(base_url=url, checks=expected, timeout=20)

        try:
            check()
        except Unsatisfiable:
            assert (mode, operation.label) == ("negative", "GET /v1"), "all other requests can be invalid"
