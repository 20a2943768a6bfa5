"""Arrays of numbers: they are parsed, checked and hashed like other values, but without Python code for each number."""

import hashlib
import json
import math
import random
import struct
import sys

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import canonical, digest
from tidewire.protocol.strict_json import MAX_INTEGER, StrictJsonError, loads

BOUNDARIES = (
    0.0,
    5e-324,
    2.2250738585072014e-308,
    1e-7,
    9.5e-7,
    1e-6,
    1e-5,
    1e-4,
    0.1,
    1.0,
    1.5,
    100.0,
    2.5e15,
)
BOUNDARIES += (1e15, 1e16, 2.0**53, 1e17, 123456789012345680.0, 1e20, 1e21, 1e22, 1.5e300, sys.float_info.max)
EDGES = [
    sign * number
    for boundary in BOUNDARIES
    for sign in (1, -1)
    for number in (boundary, math.nextafter(boundary, 0), math.nextafter(boundary, math.inf))
    if math.isfinite(number)
]
ANY_BITS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1, 1, width=32),
    ANY_BITS.filter(math.isfinite),
    st.sampled_from(EDGES),
)
MANY_NUMBERS = 16
# The library rejects ±2^53, which `canonical` must accept; another test covers these integers.
INTEGERS = st.integers(1 - MAX_INTEGER, MAX_INTEGER - 1) | st.sampled_from((0, 1, -1))


def long(elements):
    return st.lists(elements, min_size=MANY_NUMBERS + 1, max_size=3 * MANY_NUMBERS)


@settings(max_examples=60, deadline=None)
@given(long(FLOATS) | long(INTEGERS) | long(FLOATS | INTEGERS))
@example([*EDGES])
@example([-0.0] * (MANY_NUMBERS + 1))
@example([1e-7, *[0.5] * MANY_NUMBERS, -1e-10])
def test_canonical_form_of_an_array_of_numbers_equals_that_of_the_rfc8785_library(numbers):
    assert canonical(numbers) == rfc8785.dumps(numbers)


def test_canonical_form_of_random_bits_equals_that_of_the_rfc8785_library():
    bits = random.Random(53).randbytes(8 * 20_000)
    numbers = [number for (number,) in struct.iter_unpack("<d", bits) if math.isfinite(number)]
    assert canonical(numbers) == rfc8785.dumps(numbers)


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        long(FLOATS) | FLOATS | INTEGERS | st.booleans() | st.none() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
        max_leaves=6,
    )
)
@example({"\U0001f600": [0.25] * 20, "￿": [1e-9] * 20, "é": 1})
@example([1, "e", True, *[0.5] * 20, 1e-9])
@example([*[0.5] * 20, False, None])
def test_values_that_contain_arrays_of_numbers_have_the_canonical_form_of_the_library(value):
    assert canonical(value) == rfc8785.dumps(value)
    assert digest(value) == hashlib.sha256(rfc8785.dumps(value)).hexdigest()[:16]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, MAX_INTEGER + 1, -MAX_INTEGER - 1, 10**400])
@pytest.mark.parametrize("others", [0.5, 7, 1e308])
def test_array_with_a_number_outside_json_is_refused(bad, others):
    for numbers in ([others] * 20 + [bad], [bad] + [others] * 20, [0.25, 1] * 10 + [bad]):
        with pytest.raises(StrictJsonError):
            canonical(numbers)
        with pytest.raises(ValueError):
            Document({"value": numbers})
    numbers = [MAX_INTEGER, -MAX_INTEGER] + [1e308] * 20
    assert canonical(numbers).startswith(b"[9007199254740992,-9007199254740992,1e+308,")


@settings(max_examples=60, deadline=None)
@given(
    long(FLOATS | INTEGERS),
    st.sampled_from(("%s", '{"a":%s,"b":":"}', '[[%s],{"x":{"y":%s}}]', '{"a:":[%s]}')),
)
def test_parsed_numbers_equal_those_of_the_standard_library(numbers, form):
    text = form.replace("%s", json.dumps(numbers))
    assert repr(loads(text)) == repr(json.loads(text))


NUMBERS = json.dumps([0.12345678901234567] * 20)[1:-1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":[%s],"a":1}', "duplicate member 'a'"),
        ('{"a":[%s],"b":{"c":1,"c" :2}}', "duplicate member 'c'"),
        ('[{"a":":::","b":[%s],"b":0}]', "duplicate member 'b'"),
        ('{"a":[%s,1e400]}', "too large"),
        ("[%s,-1e999]", "too large"),
        ("[%s,9007199254740993]", "2\\^53"),
        ('{"a":[%s],"b":-9007199254740993}', "2\\^53"),
        ("[" * 64 + "[%s]" + "]" * 64, "deeper than 64"),
        ("[" * 300 + "%s" + "]" * 300, "deeper than 64"),
        ('{"a":[%s,NaN]}', "NaN"),
        ("[%s,-Infinity]", "Infinity"),
        ('["\\ud800",%s]', "surrogate"),
        ("[%s,]", "not JSON"),
        ('{"a":[%s]', "not JSON"),
    ],
)
def test_texts_with_many_digits_are_refused_for_the_same_reasons_as_others(text, reason):
    with pytest.raises(StrictJsonError, match=reason):
        loads(text.replace("%s", NUMBERS))


def test_deepest_allowed_text_with_many_digits_is_parsed():
    text = "[" * 63 + f"[{NUMBERS}]" + "]" * 63
    assert loads(text) == json.loads(text)


def test_an_array_of_numbers_takes_no_call_of_python_code_for_each_number():
    numbers = [math.sin(n) for n in range(10_000)]
    text = json.dumps([["s", "/value", numbers], ["s", "/more", {"b": [numbers, [1, 2, 3] * 1000]}]])
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    document = Document({})
    sys.setprofile(count)
    try:
        document.apply(loads(text))
        value = document.value()
        found = digest(value), document.json_bytes()
    finally:
        sys.setprofile(None)
    assert value == {"value": numbers, "more": {"b": [numbers, [1, 2, 3] * 1000]}}
    assert found[0] == hashlib.sha256(rfc8785.dumps(value)).hexdigest()[:16]
    assert calls < 1000
