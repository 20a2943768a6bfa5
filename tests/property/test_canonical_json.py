"""Canonical JSON: the output equals that of the `rfc8785` library for any value."""

import random
import sys

import pytest
import rfc8785

from tidewire.protocol.document.digests import canonical
from tidewire.protocol.strict_json import MAX_INTEGER, StrictJsonError

RUNS = 8_000
NUMBERS = (0, -1, 7, MAX_INTEGER - 1, 1 - MAX_INTEGER, 0.0, -0.0, 1.0, -2.5, 0.1, 1e-4, 0.99e-4, 1e-5, 1e-7)
NUMBERS += (5e-324, 1e15, 1e15 - 0.125, 1e16, 123456789012345.67, 1e20, 1e21, 1e22, -1.5e300, 2.0**60)
TEXTS = (
    "",
    "a",
    "B",
    '"',
    "\\",
    "/",
    "\b\f\n\r\t",
    "\x00\x1f\x7f",
    "é",
    "\u2028",
    "\ud7ff",
    "\ue000",
    "\uffff",
)
TEXTS += ("😀", "𐀀", "true", "__proto__")


def random_value(random_: random.Random, depth: int):
    kind = random_.randrange(8 if depth else 6)
    if kind == 0:
        return random_.choice((None, True, False))
    if kind == 1:
        return random_.choice(NUMBERS)
    if kind == 2:
        return random_.randint(-MAX_INTEGER + 1, MAX_INTEGER - 1)
    if kind == 3:
        return random_.uniform(-1, 1) * 10 ** random_.randint(-12, 25)
    if kind < 6:
        return random_text(random_)
    if kind == 6:
        return [random_value(random_, depth - 1) for _ in range(random_.randrange(4))]
    return {random_text(random_): random_value(random_, depth - 1) for _ in range(random_.randrange(4))}


def random_text(random_: random.Random) -> str:
    return "".join(random_.choices(TEXTS, k=random_.randrange(3)))


def test_canonical_form_equals_that_of_the_rfc8785_library():
    random_ = random.Random(8785)
    for _ in range(RUNS):
        value = random_value(random_, 3)
        assert canonical(value) == rfc8785.dumps(value), value


def test_largest_and_smallest_integers_are_written_in_full():
    assert canonical([MAX_INTEGER, -MAX_INTEGER]) == b"[9007199254740992,-9007199254740992]"


@pytest.mark.parametrize(
    "bad",
    [float("nan"), float("inf"), MAX_INTEGER + 1, "\ud800", {"\udc00": 1}, {1: 2}, (1,), b"x", sys.intern],
    ids=repr,
)
def test_value_outside_json_has_no_canonical_form(bad):
    for value in (bad, [bad], {"a": [1, bad]}):
        with pytest.raises(StrictJsonError):
            canonical(value)
