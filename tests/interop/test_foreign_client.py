"""The JavaScript package and a page, against the reference server and third-party servers.

`tests/scenarios/test_client_scenarios.py` plays every scenario of the specification with the JavaScript
package.
"""

import json
import re
import subprocess

import pytest

from support.foreign_programs import (
    INTEROP,
    NODE,
    SERVERS,
    TEXT,
    cut_inside_events,
    javascript,
    javascript_server,
    needs_node,
    server,
)
from support.late_body_proxy import LateBodyProxy
from support.sample_server import WORDS, sentence, served
from support.server_address import address_of
from support.spec_document import SPEC
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

pytestmark = needs_node

CUTS = 12


def run(url, endpoint, body, **options):
    """The updates that the JavaScript package delivered, and its final report."""
    return ClientOutput(javascript("main.mjs", "run", url, endpoint, json.dumps(body), **options))


def attach(url, name, **options):
    return ClientOutput(javascript("main.mjs", "attach", url, name, **options))


class ClientOutput:
    def __init__(self, lines):
        self.updates = [line["update"] for line in lines if "update" in line]
        self.error = next((line["error"] for line in lines if "error" in line), None)
        self.job = next((line["job"] for line in lines if "job" in line), None)

    @property
    def text(self):
        """The delivered texts, assembled as an application would."""
        whole = ""
        for update in self.updates:
            whole = whole[: len(whole) - update["deleted"]] + update["text"]
        return whole

    @property
    def value(self):
        return self.job["items"][0]["value"]


# ---- vectors ---------------------------------------------------------------------------------------------------


def test_the_client_passes_every_vector():
    run = subprocess.run(
        [str(NODE), INTEROP / "javascript/vectors.mjs", SPEC / "vectors"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"^(\d+) vectors, 0 failed", run.stdout, re.MULTILINE)
    assert found
    assert int(found[1]) >= 1200


# ---- the reference server --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference_url():
    with served(retry=0.02) as url:
        yield url


def test_a_job_of_the_reference_server_is_read_to_its_end(reference_url):
    output = run(reference_url, "talk", {"input": {"words": 40, "slow": True}})
    assert output.text == output.value == sentence(40)
    assert output.job["done"]["status"] == "succeeded"
    assert output.job["resyncs"] == 0


def test_values_of_the_reference_server_are_rebuilt_from_diffs(reference_url):
    output = run(reference_url, "grow", {"input": {"steps": 8}})
    assert output.value["rows"] == [[at, at / 2] for at in range(8)]
    assert output.value["text"] == "".join(WORDS[:8])
    assert output.updates[-1]["value"] == output.value


def test_rollbacks_of_the_reference_server_are_applied(reference_url):
    output = run(reference_url, "hesitate", {"input": {"words": 5}})
    assert output.text == output.value == "".join(f"{word} " for word in WORDS[:5])
    assert sum(update["deleted"] for update in output.updates) == 5 * len("wrong ")


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_cuts_within_events_of_the_reference_server_lose_nothing(reference_url, how):
    with FaultProxy(address_of(reference_url), plan=cut_inside_events(CUTS, how)) as proxy:
        output = run(proxy.url, "talk", {"input": {"words": 60, "slow": True}})
        assert len(proxy.cuts) >= CUTS - 1
    assert output.text == output.value == sentence(60)


def test_rollbacks_are_applied_across_cuts(reference_url):
    with FaultProxy(address_of(reference_url), plan=cut_inside_events(CUTS, "fin")) as proxy:
        output = run(proxy.url, "hesitate", {"input": {"words": 12}})
        assert len(proxy.cuts) >= CUTS - 1
    assert output.text == output.value


def test_a_submit_whose_body_arrives_too_late_is_repeated():
    with served(body_timeout=0.1) as url, LateBodyProxy(address_of(url)) as proxy:
        output = run(proxy.url, "talk", {"input": {"words": 3}})
        assert proxy.faults["late body"] == 1
    assert output.text == output.value == sentence(3)


def test_batch_items_of_the_reference_server_end_independently(reference_url):
    output = run(reference_url, "point", {"inputs": [{"x": 1}, {"x": 2, "fail": True}, {"x": 3}]})
    assert [item["status"] for item in output.job["items"]] == ["succeeded", "failed", "succeeded"]
    assert output.job["items"][1]["error"]["detail"] == "no such point"
    assert output.job["done"]["status"] == "partially_failed"


def test_cancel_stops_a_job_of_the_reference_server(reference_url):
    output = run(reference_url, "forever", {"input": {}}, cancelAfter=4)
    assert output.job["done"]["status"] == "cancelled"
    assert output.error["name"] == "JobCancelledError"
    assert output.error["value"] == output.value


@pytest.mark.heavy
def test_one_idempotency_key_starts_one_job(reference_url):
    first = run(reference_url, "talk", {"input": {}}, key="k" * 30)
    again = run(reference_url, "talk", {"input": {}}, key="k" * 30)
    other = run(reference_url, "talk", {"input": {"words": 3}}, key="k" * 30)
    assert first.job["id"] == again.job["id"]
    assert other.error["problem"]["code"] == "idempotency_key_reused"


# ---- third-party servers ---------------------------------------------------------------------------------------


@pytest.fixture(params=SERVERS, scope="module")
def third_party_url(request):
    with server(request.param) as url:
        yield url


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["fin", pytest.param("rst", marks=pytest.mark.slow)])
def test_cuts_within_events_of_third_party_servers_lose_nothing(third_party_url, how):
    with FaultProxy(address_of(third_party_url), plan=cut_inside_events(CUTS, how)) as proxy:
        output = run(proxy.url, "words", {"input": {"text": TEXT, "delay_ms": 1}})
        assert len(proxy.cuts) >= CUTS - 1
    assert output.text == output.value == TEXT


@pytest.mark.heavy
def test_another_process_resumes_from_a_checkpoint(third_party_url):
    first = run(third_party_url, "words", {"input": {"text": TEXT, "delay_ms": 2}}, stopAfter=9)
    rest = attach(third_party_url, first.job["id"], checkpoint=first.job["checkpoint"])
    assert 0 < len(first.text) < len(TEXT)
    assert first.text + rest.text == TEXT
    assert rest.value == TEXT


def test_silence_reconnects():
    plan = lambda n: Cut(mark=b"id:1-5\n", after=2, how="stall") if n < 3 else None  # noqa: E731
    with javascript_server(heartbeat_ms=100) as url, FaultProxy(address_of(url), plan) as proxy:
        output = run(proxy.url, "words", {"input": {"text": TEXT, "delay_ms": 1}})
        assert len(proxy.cuts) >= 1
    assert output.text == TEXT


def test_a_snapshot_replaces_trimmed_events():
    with (
        javascript_server(max_log_bytes=200) as url,
        FaultProxy(address_of(url), plan=cut_inside_events(CUTS, "fin")) as proxy,
    ):
        output = run(proxy.url, "words", {"input": {"text": TEXT, "delay_ms": 2}})
        assert len(proxy.cuts) >= 2
    assert None in [update["ops"] for update in output.updates], "no snapshot has arrived"
    assert output.text == output.value == TEXT


# ---- the browser page ------------------------------------------------------------------------------------------


def run_page(url, name):
    lines = javascript("page.mjs", url, name)
    return [line["show"] for line in lines if "show" in line], lines[-1]


def start(url, endpoint, **input_):
    return run(url, endpoint, {"input": input_}, stopAfter=1).job["id"]


@pytest.mark.heavy
def test_a_page_follows_a_job_through_cuts(third_party_url):
    name = start(third_party_url, "words", text=TEXT, delay_ms=40)
    with FaultProxy(address_of(third_party_url), plan=cut_inside_events(5, "fin")) as proxy:
        shown, end = run_page(proxy.url, name)
        assert len(proxy.cuts) == 5
    assert len(shown) > 5
    assert all(TEXT.startswith(one["items"][0]["value"]) for one in shown)
    assert end["done"]["status"] == "succeeded"
    assert end["done"]["items"] == [{"status": "succeeded", "value": TEXT}]


@pytest.mark.heavy
def test_a_page_applies_rollbacks_and_diffs(reference_url):
    _, end = run_page(reference_url, start(reference_url, "hesitate", words=5))
    assert end["done"]["items"][0]["value"] == "".join(f"{word} " for word in WORDS[:5])
    _, end = run_page(reference_url, start(reference_url, "grow", steps=8))
    assert end["done"]["items"][0]["value"]["rows"] == [[at, at / 2] for at in range(8)]


def test_the_page_has_fewer_than_forty_lines():
    assert len((INTEROP / "browser_client.js").read_text(encoding="utf-8").splitlines()) < 40
