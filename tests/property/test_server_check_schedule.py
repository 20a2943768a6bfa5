"""Integrity checks in logged events: each check matches the state after its event, for any mixture of changes."""

import json
import random

import pytest

from support.stream_harness import on_event_loop, pending_events, take_diffs
from tidewire.protocol.document import Document
from tidewire_server.job_log.open_event import addition, encoded_row
from tidewire_server.job_log.text_check_schedule import CHECK_EVERY


def state():
    value = {"text": "", "ids": [], "other": ""}
    return {"status": "running", "items": [{"status": "running", "value": value}], "usage": {}, "notes": []}


def writer_for(columns, *, merge, max_event_bytes=2**20):
    return pending_events(
        state(), columns, merge=merge, max_event_bytes=max_event_bytes, max_state_bytes=2**24
    )


def apply_all(diffs, columns):
    """Apply the events, including their checks, as a reader does; return the document and the number of checks."""
    document = Document(state(), columns)
    checks = 0
    for diff in map(json.loads, diffs):
        document.apply(diff)
        checks += len(diff.get("check", ())) if isinstance(diff, dict) else 0
    return document, checks


TEXT, IDS, OTHER = (f"/items/0/value/{name}" for name in ("text", "ids", "other"))


@pytest.mark.parametrize("merge", [False, True])
@on_event_loop
async def test_event_for_each_append_has_a_check_at_the_configured_interval(merge):
    writer = writer_for([TEXT], merge=merge)
    for i in range(3 * CHECK_EVERY):
        writer.append([addition(TEXT, f" {i}")])
    document, checks = apply_all(take_diffs(writer), [TEXT])
    assert document.value(TEXT) == "".join(f" {i}" for i in range(3 * CHECK_EVERY))
    assert checks == (0 if merge else 3)


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))]
)
@pytest.mark.parametrize("merge", [False, True])
@on_event_loop
async def test_readers_document_equals_the_writers_for_any_mixture_of_changes(seed, merge):
    rng = random.Random(seed)
    columns = [TEXT, IDS]
    writer = writer_for(columns, merge=merge, max_event_bytes=2000)
    taken = []
    for i in range(400):
        word = "é🙂x"[rng.randrange(3)] * rng.randrange(6)
        match rng.randrange(6):
            case 0 | 1:
                writer.append_rows([encoded_row([word, i])])
            case 2:
                writer.append([addition(TEXT, word)])
            case 3:
                writer.append([addition(OTHER, word), addition(TEXT, word), addition(IDS, [i])])
            case 4:
                length = writer.state.document.text_length(OTHER)
                writer.change([["t", OTHER, rng.randrange(length + 1)]])
            case _:
                writer.change([["s", OTHER, word], ["a", OTHER, word]])
        if rng.random() < 0.1:
            taken += take_diffs(writer)
    writer.change([["s", "/items/0/status", "succeeded"]], check_below="/items/0/value", reserved=True)
    taken += take_diffs(writer)
    document, checks = apply_all(taken, columns)
    assert document.value() == writer.state.document.value()
    assert checks > 0
