"""Each check is of the state that its own event leads to, however the changes fall into events."""

import json
import random

import pytest

from support.stream_harness import log_writer, on_a_loop
from tidewire.protocol.document import Document
from tidewire_server.log_writer.text_check_schedule import CHECK_EVERY


def state():
    value = {"text": "", "ids": [], "other": ""}
    return {"status": "running", "items": [{"status": "running", "value": value}], "usage": {}, "notes": []}


def pending(columns, *, merge, max_event_bytes=2**20):
    return log_writer(state(), columns, merge=merge, max_event_bytes=max_event_bytes, max_state_bytes=2**24)


def fold(diffs, columns):
    """Apply the events as a reader does, checks and all."""
    document = Document(state(), columns)
    checks = 0
    for diff in map(json.loads, diffs):
        document.apply(diff)
        checks += len(diff.get("check", ())) if isinstance(diff, dict) else 0
    return document, checks


TEXT, IDS, OTHER = (f"/items/0/value/{name}" for name in ("text", "ids", "other"))


@pytest.mark.parametrize("merge", [False, True])
@on_a_loop
async def test_one_event_for_each_append_proves_what_it_leads_to(merge):
    made = pending([TEXT], merge=merge)
    for i in range(3 * CHECK_EVERY):
        made.append([(TEXT, f" {i}")])
    document, checks = fold(made.take(), [TEXT])
    assert document.value(TEXT) == "".join(f" {i}" for i in range(3 * CHECK_EVERY))
    assert checks == (0 if merge else 3)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("merge", [False, True])
@on_a_loop
async def test_any_mixture_of_changes_folds_to_the_writers_document(seed, merge):
    rng = random.Random(seed)
    columns = [TEXT, IDS]
    made = pending(columns, merge=merge, max_event_bytes=2000)
    taken = []
    for i in range(400):
        word = "é🙂x"[rng.randrange(3)] * rng.randrange(6)
        match rng.randrange(6):
            case 0 | 1:
                made.row([word, i])
            case 2:
                made.append([(TEXT, word)])
            case 3:
                made.append([(OTHER, word), (TEXT, word), (IDS, [i])])
            case 4:
                length = made.document.text_length(OTHER)
                made.change([["t", OTHER, rng.randrange(length + 1)]])
            case _:
                made.change([["s", OTHER, word], ["a", OTHER, word]])
        if rng.random() < 0.1:
            taken += made.take()
    made.change([["s", "/items/0/status", "succeeded"]], check_below="/items/0/value", ends=True)
    taken += made.take()
    document, checks = fold(taken, columns)
    assert document.value() == made.document.value()
    assert checks > 0
