"""Results of functions that do not stream, if they are longer than `max_event_bytes`."""

import pytest

from support.reference_server import QUICK, Fold, data, logged, serving
from tidewire import Client
from tidewire_server import ItemError, Server

LIMIT = 2048


@pytest.fixture(scope="module")
def peer():
    server = Server(**QUICK | {"max_event_bytes": LIMIT})

    @server.endpoint
    def report(length: int) -> list[str]:
        return ["é" * length]

    @server.endpoint
    def refuse() -> str:
        raise ItemError("no", details="x" * 2 * LIMIT)

    with serving(server) as peer:
        yield peer


@pytest.mark.parametrize(("length", "kind"), [(100, "message"), (LIMIT, "snapshot")])
def test_result_is_set_in_one_event(peer, length, kind):
    *_, end, done = logged(peer.events(peer.start("report", {"length": length}), after="0-0"))
    assert end.type == kind
    assert done.type == "done"
    assert end.id == "1-3"
    if kind == "snapshot":
        assert data(end)["reason"] == "compacted"
        assert data(end)["state"]["items"] == [{"status": "succeeded", "value": ["é" * length]}]


def test_items_of_a_batch_each_end_in_one_event(peer):
    events = logged(peer.events(peer.start("report", inputs=[{"length": LIMIT}] * 3), after="0-0"))
    assert [event.type for event in events].count("snapshot") == 4
    assert [item["value"] for item in Fold().take(events).items] == [["é" * LIMIT]] * 3


def test_item_with_a_long_error_ends_in_one_event(peer):
    *_, end, _ = logged(peer.events(peer.start("refuse"), after="0-0"))
    assert end.type == "snapshot"
    assert data(end)["state"]["items"][0]["status"] == "failed"
    assert data(end)["state"]["items"][0]["error"]["details"] == "x" * 2 * LIMIT


def test_client_reads_long_results_once(peer):
    with Client(peer.url) as client:
        assert client.run("report", length=3 * LIMIT) == ["é" * 3 * LIMIT]
        values = [
            update.value for update in client.submit("report", length=3 * LIMIT) if update.value is not None
        ]
        assert values == [["é" * 3 * LIMIT]]
        assert client.submit_batch("report", [{"length": LIMIT}] * 3).results() == [["é" * LIMIT]] * 3
