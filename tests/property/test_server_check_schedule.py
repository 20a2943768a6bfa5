"""Integrity checks in logged events: each check matches the state after its event, for any mixture of changes."""

import json
import random

import pytest

from support.stream_harness import pending_events, take_diffs
from tidewire.protocol.document import Document
from tidewire_server.job_log.open_event import addition, encoded_row
from tidewire_server.job_log.text_check_schedule import CHECK_EVERY
from tidewire_server.job_log.value_differ import ShadowCopy


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


VALUE = "/items/0/value"


def mutate(rng, rows):
    """Change a list of texts, and of lists and objects with texts, in place, as a function does between two yields."""
    word = "é🙂x"[rng.randrange(3)] * rng.randrange(1, 4)
    new = [word, {"text": word}, [word, [word]], 1][rng.randrange(4)]
    at = rng.randrange(len(rows)) if rows else None
    match rng.randrange(8):
        case 0 | 1:
            rows.append(new)
        case 2 if rows:
            del rows[-rng.randrange(1, 4) :]
        case 3 if rows:
            rows[at] = new
        case 4 if rows:
            rows.insert(at, new)
        case 5 if rows:
            del rows[at]
        case _ if rows:
            match rows[at]:
                case str(text):
                    rows[at] = text + word
                case {"text": text}:
                    rows[at]["text"] = text + word
                case [text, *_]:
                    rows[at] = [text + word, [word]] if rng.randrange(2) else [text + word]


@pytest.mark.parametrize("seed", range(20))
async def test_checks_are_those_of_the_texts_that_remain_when_arrays_shrink(seed):
    rng = random.Random(seed)
    writer = writer_for([], merge=True)
    rows = []
    writer.change([["s", VALUE, rows]])
    shadow, taken = ShadowCopy(rows, VALUE), []
    for _ in range(300):
        for _ in range(rng.randrange(1, 4)):
            mutate(rng, rows)
        if ops := shadow.step(rows):
            writer.change(ops)
        if rng.random() < 0.1:
            taken += take_diffs(writer)
    writer.change([["s", "/items/0/status", "succeeded"]], check_below=VALUE, reserved=True)
    taken += take_diffs(writer)
    document, _ = apply_all(taken, [])
    assert document.value(VALUE) == rows


@pytest.mark.parametrize(
    "values",
    [
        [["a"], ["ab"], []],
        [["a", "b"], ["a", "bc"], ["a"]],
        [[{"text": "a"}], [{"text": "ab"}], []],
        [["a", ["b"]], ["a", ["bc"]], ["ad"]],
        [["a"], ["ab"], [["c"]]],
    ],
)
async def test_an_array_shrinks_past_a_text_that_has_grown(values):
    writer = writer_for([], merge=True)
    writer.change([["s", VALUE, values[0]]])
    shadow = ShadowCopy(values[0], VALUE)
    for value in values[1:]:
        writer.change(shadow.step(value))
    writer.change([["s", "/items/0/status", "succeeded"]], check_below=VALUE, reserved=True)
    document, _ = apply_all(take_diffs(writer), [])
    assert document.value(VALUE) == values[-1]
