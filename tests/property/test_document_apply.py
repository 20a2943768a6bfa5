"""`Document`, the pure `apply` and a simple model agree on random diffs, and views never change."""

import copy
import random
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.random_json import canonical_text, random_change_of, random_value
from tidewire.protocol.diff import DiffError, IntegrityError, apply, diff
from tidewire.protocol.document import Document
from tidewire.protocol.document.document import TextChange
from tidewire.protocol.document.json_pointer import array_index, build, parse

COLUMNS = ["/items/0/value/text", "/items/0/value/ids", "/items/1/value"]
STEPS = 12
EXAMPLES = 200


def random_state(draw):
    return {
        "items": [
            {"value": {"text": draw.choice(["", "Hel", "é🎉"]), "ids": [], "rest": random_value(draw, 2)}},
            {"value": draw.choice(["", "word"])},
        ],
        "rest": random_value(draw, 3),
    }


def apply_to_model(value, ops, columns):
    """Apply ops to a copy with the simplest possible Python. Raises any exception for an invalid op."""
    top = [copy.deepcopy(value)]

    def place(path):
        container, key = top, 0
        for token in parse(path):
            container = container[key]
            key = array_index(token) if isinstance(container, list) else token
        return container, key

    def append(path, x):
        container, key = place(path)
        if type(container[key]) not in (str, list) or type(container[key]) is not type(x):
            raise TypeError
        container[key] = container[key] + x

    for op in ops:
        if op[0] == "r":
            for path, x in zip(columns, op[1:], strict=True):
                container, key = place(path)
                append(path, [copy.deepcopy(x)] if isinstance(container[key], list) else x)
        elif op[0] == "a":
            append(op[1], copy.deepcopy(op[2]))
        elif op[0] == "t":
            container, key = place(op[1])
            if not isinstance(container[key], str | list) or op[2] > len(container[key]):
                raise IndexError
            container[key] = container[key][: len(container[key]) - op[2]]
        elif op[0] == "s":
            container, key = place(op[1])
            if isinstance(container, list) and key == len(container):
                container.append(copy.deepcopy(op[2]))
            else:
                container[key] = copy.deepcopy(op[2])
        elif op[0] == "i":
            container, key = place(op[1])
            if container is top or key > len(container):
                raise IndexError
            container.insert(key, copy.deepcopy(op[2]))
        else:
            container, key = place(op[1])
            if container is top:
                raise IndexError
            del container[key]
    return top[0]


def locations(value, tokens=()):
    yield tokens, value
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from locations(element, (*tokens, index))
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from locations(member, (*tokens, name))


def random_op(draw, value):
    """Return a random op that is valid, or nearly valid."""
    kind = draw.random()
    if kind < 0.35:
        return ["r", draw.choice(["a", " é🎉", ""]), random_value(draw, 1), draw.choice(["b", "c"])]
    everywhere = list(locations(value))
    texts = [tokens for tokens, x in everywhere if isinstance(x, str)]
    arrays = [tokens for tokens, x in everywhere if isinstance(x, list)]
    if kind < 0.55 and texts:
        return ["a", build(draw.choice(texts)), draw.choice(["x", "yz", "🎉", ""])]
    if kind < 0.65 and arrays:
        return ["a", build(draw.choice(arrays)), [random_value(draw, 1) for _ in range(draw.randrange(3))]]
    if kind < 0.8 and texts + arrays:
        return ["t", build(draw.choice(texts + arrays)), draw.choice([0, 0, 1, 1, 2, 3])]
    tokens, _ = draw.choice(everywhere)
    if kind < 0.9:
        return ["s", build(tokens), random_value(draw, 2)]
    if kind < 0.95 and arrays:
        tokens = draw.choice(arrays)
        return ["i", build((*tokens, draw.randrange(3))), random_value(draw, 1)]
    return ["d", build(tokens)]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_random_diffs_have_the_same_result_in_document_apply_and_model(seed):
    draw = random.Random(seed)
    applied = refused = 0
    for _ in range(300):
        value = random_state(draw)
        document = Document(value, COLUMNS)
        kept = [(document.view(), canonical_text(value))]
        for _ in range(STEPS):
            ops = [random_op(draw, value) for _ in range(draw.choice([1, 1, 1, 2, 5]))]
            texts = {path: text_at(value, path) for path in COLUMNS}
            try:
                expected = apply_to_model(value, ops, COLUMNS)
            except Exception:
                refused += 1
                with pytest.raises(DiffError):
                    apply(value, ops, columns=COLUMNS)
                with pytest.raises(DiffError):
                    document.apply(ops)
                assert canonical_text(document.value()) == canonical_text(value), ops
            else:
                applied += 1
                assert canonical_text(apply(value, ops, columns=COLUMNS)) == canonical_text(expected), ops
                document.apply(ops)
                assert canonical_text(document.value()) == canonical_text(expected), ops
                assert document.text_changes == changes(texts, expected), ops
                value = expected
            if draw.random() < 0.7:
                kept.append((document.view(), canonical_text(value)))
        for view, expected in kept:
            assert canonical_text(view.value()) == expected
    assert applied > 2000
    assert refused > 200


def text_at(value, path):
    try:
        for token in parse(path):
            value = value[array_index(token) if isinstance(value, list) else token]
    except (LookupError, ValueError, TypeError):
        return ""
    return value if isinstance(value, str) else ""


def changes(texts, value):
    text_changes = [TextChange.between(path, texts[path], text_at(value, path)) for path in COLUMNS]
    return tuple(change for change in text_changes if change.deleted or change.text)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_computed_diffs_lead_through_the_same_states(seed):
    draw = random.Random(seed)
    for _ in range(500):
        value = random_state(draw)
        document = Document(value, COLUMNS)
        kept = []
        for _ in range(STEPS):
            target = random_change_of(draw, value)
            document.apply(diff(value, target))
            assert canonical_text(document.value()) == canonical_text(target)
            kept.append((document.view(), canonical_text(target)))
            value = target
        for view, expected in kept:
            assert canonical_text(view.value()) == expected


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_failure_at_the_end_of_a_diff_rolls_back_all_its_ops(seed):
    draw = random.Random(seed)
    for _ in range(130):
        value = random_state(draw)
        document = Document(value, COLUMNS)
        for _ in range(STEPS):
            ops = [random_op(draw, value) for _ in range(draw.randrange(4))]
            before, kept = canonical_text(value), document.view()
            for bad in ([*ops, ["d", "/there/is/none"]], {"ops": ops, "check": [["/there/is/none", 0]]}):
                with pytest.raises((DiffError, IntegrityError)):
                    document.apply(bad)
                assert canonical_text(document.value()) == before
            try:
                document.apply(ops)
            except DiffError:
                assert canonical_text(document.value()) == before
            else:
                value = document.value()
            assert canonical_text(kept.value()) == before


pieces = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@pytest.mark.heavy
@settings(max_examples=EXAMPLES, deadline=None)
@given(pieces, st.lists(pieces | st.integers(0, 8), max_size=20))
def test_text_is_right_after_any_appends_and_truncations(start, steps):
    document = Document({"t": start}, ["/t"])
    text, kept = start, []
    for step in steps:
        if isinstance(step, str):
            document.apply(step)
            text += step
        elif step <= len(text):
            document.apply([["t", "/t", step]])
            text = text[: len(text) - step]
        assert document.text_length("/t") == len(text)
        assert document.text_crc("/t") == crc32(text.encode())
        kept.append((document.view(), text))
    for view, expected in kept:
        assert view.value("/t") == expected
