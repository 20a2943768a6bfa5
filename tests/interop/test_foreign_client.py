"""Clients that were written from the specification alone: against our server, the other strangers, and the vectors.

Every scenario of the specification is played with the JavaScript client by `tests/scenarios/test_client_scenarios.py`.
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
    address,
    cut_inside_events,
    javascript,
    javascript_server,
    needs_node,
    server,
)
from support.sample_server import WORDS, sentence, served
from support.spec_document import SPEC
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

pytestmark = needs_node

CUTS = 12


def run(url, endpoint, body, **options):
    """What the JavaScript client handed over, and how it ended."""
    return Told(javascript("main.mjs", "run", url, endpoint, json.dumps(body), baseMs=20, **options))


def attach(url, name, **options):
    return Told(javascript("main.mjs", "attach", url, name, **({"baseMs": 2} | options)))


class Told:
    def __init__(self, lines):
        self.updates = [line["update"] for line in lines if "update" in line]
        self.error = next((line["error"] for line in lines if "error" in line), None)
        self.job = next((line["job"] for line in lines if "job" in line), None)

    @property
    def text(self):
        """The texts that were handed over, put together as a script would."""
        whole = ""
        for update in self.updates:
            for change in update["texts"]:
                whole = whole[: len(whole) - change["voided"]] + change["text"]
        return whole

    @property
    def value(self):
        return self.job["items"][0]["value"]


# ---- vectors ---------------------------------------------------------------------------------------------------


def test_every_vector_for_clients_is_passed():
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


# ---- our server ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours():
    with served(retry=0.02) as url:
        yield url


def test_our_server_is_read_to_the_end(ours):
    told = run(ours, "talk", {"input": {"words": 40, "slow": True}})
    assert told.text == told.value == sentence(40)
    assert told.job["done"]["status"] == "succeeded"
    assert told.job["resyncs"] == 0


def test_whole_values_of_our_server_arrive_as_diffs(ours):
    told = run(ours, "grow", {"input": {"steps": 8}})
    assert told.value["rows"] == [[at, at / 2] for at in range(8)]
    assert told.value["text"] == told.text == "".join(WORDS[:8])


def test_our_server_takes_text_back(ours):
    told = run(ours, "hesitate", {"input": {"words": 5}})
    assert told.text == told.value == "".join(f"{word} " for word in WORDS[:5])
    assert sum(change["voided"] for update in told.updates for change in update["texts"]) == 5 * len("wrong ")


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_cuts_of_our_server_inside_events_lose_nothing(ours, how):
    with FaultProxy(address(ours), plan=cut_inside_events(CUTS, how)) as proxy:
        told = run(proxy.url, "talk", {"input": {"words": 60, "slow": True}})
        assert len(proxy.cuts) >= CUTS - 1
    assert told.text == told.value == sentence(60)


def test_text_that_is_taken_back_survives_cuts(ours):
    with FaultProxy(address(ours), plan=cut_inside_events(CUTS, "fin")) as proxy:
        told = run(proxy.url, "hesitate", {"input": {"words": 12}})
        assert len(proxy.cuts) >= CUTS - 1
    assert told.text == told.value


def test_items_of_a_batch_of_our_server_end_one_by_one(ours):
    told = run(ours, "point", {"inputs": [{"x": 1}, {"x": 2, "fail": True}, {"x": 3}]})
    assert [item["status"] for item in told.job["items"]] == ["succeeded", "failed", "succeeded"]
    assert [item["complete"] for item in told.job["items"]] == [True, False, True]
    assert told.job["items"][1]["error"]["detail"] == "no such point"
    assert told.job["done"]["status"] == "partially_failed"


def test_a_cancel_stops_our_server(ours):
    told = run(ours, "forever", {"input": {}}, cancelAfter=4)
    assert told.job["done"]["status"] == "cancelled"
    assert told.job["items"][0]["complete"] is False


def test_one_key_starts_one_job_on_our_server(ours):
    first = run(ours, "talk", {"input": {}}, key="k" * 30)
    again = run(ours, "talk", {"input": {}}, key="k" * 30)
    other = run(ours, "talk", {"input": {"words": 3}}, key="k" * 30)
    assert first.job["id"] == again.job["id"]
    assert other.error["problem"]["code"] == "idempotency_key_reused"


# ---- each other's ----------------------------------------------------------------------------------------------


@pytest.fixture(params=SERVERS, scope="module")
def theirs(request):
    with server(request.param) as url:
        yield url


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_cuts_of_their_servers_inside_events_lose_nothing(theirs, how):
    with FaultProxy(address(theirs), plan=cut_inside_events(CUTS, how)) as proxy:
        told = run(proxy.url, "words", {"input": {"text": TEXT, "delay_ms": 1}})
        assert len(proxy.cuts) >= CUTS - 1
    assert told.text == told.value == TEXT


def test_another_process_goes_on_from_a_checkpoint(theirs):
    first = run(theirs, "words", {"input": {"text": TEXT, "delay_ms": 2}}, stopAfter=9)
    rest = attach(theirs, first.job["id"], checkpoint=first.job["checkpoint"])
    assert 0 < len(first.text) < len(TEXT)
    assert first.text + rest.text == TEXT
    assert rest.value == TEXT


def test_silence_is_a_cut():
    plan = lambda n: Cut(mark=b"id:1-5\n", after=2, how="stall") if n < 3 else None  # noqa: E731
    with javascript_server(heartbeat_ms=100) as url, FaultProxy(address(url), plan) as proxy:
        told = run(proxy.url, "words", {"input": {"text": TEXT, "delay_ms": 1}})
        assert len(proxy.cuts) >= 1
    assert told.text == TEXT


def test_a_snapshot_stands_for_what_was_trimmed():
    with (
        javascript_server(max_log_bytes=200) as url,
        FaultProxy(address(url), plan=cut_inside_events(CUTS, "fin")) as proxy,
    ):
        told = run(proxy.url, "words", {"input": {"text": TEXT, "delay_ms": 2}})
        assert len(proxy.cuts) >= 2
    assert "compacted" in {update["reason"] for update in told.updates}
    assert told.text == told.value == TEXT


# ---- the page --------------------------------------------------------------------------------------------------


def page(url, name):
    lines = javascript("page.mjs", url, name)
    return [line["show"] for line in lines if "show" in line], lines[-1]


def start(url, endpoint, **given):
    return run(url, endpoint, {"input": given}, stopAfter=1).job["id"]


def test_a_page_follows_a_job_through_cuts(theirs):
    name = start(theirs, "words", text=TEXT, delay_ms=12)
    with FaultProxy(address(theirs), plan=cut_inside_events(5, "fin")) as proxy:
        shown, end = page(proxy.url, name)
        assert len(proxy.cuts) == 5
    assert len(shown) > 5
    assert all(TEXT.startswith(one["items"][0]["value"]) for one in shown)
    assert end["done"]["status"] == "succeeded"
    assert end["done"]["items"] == [{"status": "succeeded", "value": TEXT}]


def test_a_page_takes_text_back_and_grows_values(ours):
    _, end = page(ours, start(ours, "hesitate", words=5))
    assert end["done"]["items"][0]["value"] == "".join(f"{word} " for word in WORDS[:5])
    _, end = page(ours, start(ours, "grow", steps=8))
    assert end["done"]["items"][0]["value"]["rows"] == [[at, at / 2] for at in range(8)]


def test_the_page_needs_little_more_than_forty_lines():
    assert len((INTEROP / "browser_client.js").read_text(encoding="utf-8").splitlines()) < 40
