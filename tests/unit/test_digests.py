import hashlib
import json
import tracemalloc
from pathlib import Path

import pytest

from tidewire.protocol.diff import DiffError
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import (
    PART,
    IntegrityError,
    array_check,
    canonical,
    digest,
    text_check,
    verify,
)
from tidewire.protocol.strict_json import StrictJsonError

VECTORS = json.loads(
    (Path(__file__).parents[2] / "spec" / "vectors" / "diff" / "proofs.json").read_text(encoding="utf-8")
)["vectors"]
CHECKS = [vector for vector in VECTORS if "check" in vector]
DIGESTS = [vector for vector in VECTORS if "digest" in vector]


@pytest.mark.parametrize("vector", CHECKS, ids=lambda vector: vector["name"])
def test_a_check_proves_a_text(vector):
    assert text_check("/t", vector["text"]) == vector["check"]
    document = Document({"t": vector["text"]})
    verify(document, [vector["check"]])
    path, length, crc = vector["check"]
    for wrong in ([path, length + 1, crc], [path, length, crc ^ 1]):
        with pytest.raises(IntegrityError):
            verify(document, [wrong])


def test_a_check_proves_the_length_of_an_array():
    document = Document({"n": [1, [2, 3]]})
    verify(document, [array_check("/n", 2), array_check("/n/1", 2)])
    with pytest.raises(IntegrityError):
        verify(document, [array_check("/n", 3)])


def test_no_checks_prove_nothing():
    verify(Document({}), [])


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (["/t", 2, 0], "check of '/t' failed: the length in code points is 3, but 2 was expected"),
        (["/t", 3, 1], "check of '/t' failed: the CRC-32 is 891568578, but 1 was expected"),
        (["/n", 5], "check of '/n' failed: the number of elements is 2, but 5 was expected"),
        (["/q", 1, 1], "check of '/q': nothing at '/q': there is no member 'q'"),
        (["/n", 2, 0], "check of '/n': '/n' is an array, not a text"),
        (["/t", 3], "check of '/t': '/t' is a text, not an array"),
    ],
)
def test_a_failed_check_says_where_what_was_expected_and_what_is_there(check, says):
    with pytest.raises(IntegrityError) as failure:
        verify(Document({"t": "abc", "n": [1, 2]}), [check])
    assert str(failure.value) == says


def test_malformed_checks_are_no_failed_ones():
    for checks in ({}, None, "x", [None], [["/t"]], [["/t", 1.0, 0]], [["/t", 1, 2**32]], [["t", 1, 0]]):
        with pytest.raises(DiffError):
            verify(Document({"t": "abc"}), checks)


@pytest.mark.parametrize("vector", DIGESTS, ids=lambda vector: vector["name"])
def test_the_digest_is_that_of_the_canonical_form(vector):
    assert hashlib.sha256(vector["canonical"].encode()).hexdigest()[:16] == vector["digest"]
    assert digest(vector["items"]) == vector["digest"]


def test_a_digest_does_not_know_the_order_of_members_but_that_of_elements():
    assert digest([{"a": 1, "b": 2}]) == digest([{"b": 2, "a": 1}])
    assert digest([1, 2]) != digest([2, 1])


@pytest.mark.parametrize("bad", [float("nan"), 2**53 + 1, "\ud83d", {1: 2}, (1,)], ids=repr)
def test_what_is_not_json_has_no_digest(bad):
    with pytest.raises(StrictJsonError):
        digest([bad])


def test_a_digest_of_a_hundred_thousand_levels_is_an_error_and_no_overflow():
    deep = 0
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(StrictJsonError, match="nested deeper"):
        digest(deep)


@pytest.mark.parametrize("length", [PART, PART + 1, 2 * PART + 5])
@pytest.mark.parametrize("letters", ["x", 'a"\\\n\x00\x7f', "é\u2028\ud7ff\ue000", "𝄞a"])
@pytest.mark.parametrize(
    "others",
    [
        {},
        {"status": "running"},
        {"a": [1, "z"], "z": {"k": None}, '"\n': "x"},
        {"valu": 1, "valuf": 1.5, "value ": True, "": 0.0},
        {"a\U0001f600": 1, "a\uffff": 2, "v\U0001f600": 3, "v\uffff": 4},
    ],
)
def test_a_long_text_has_the_digest_of_the_canonical_form(length, letters, others):
    text = (letters * length)[:length]
    for items in ([{**others, "value": text}], [{"value": text, **others}, {"value": text}]):
        assert digest(items) == hashlib.sha256(canonical(items)).hexdigest()[:16]


@pytest.mark.parametrize("item", [{"value": "\ud800"}, {"value": "", "x": "\ud800"}, {"value": "", 1: 2}])
def test_what_is_not_json_beside_a_long_text_has_no_digest(item):
    with pytest.raises(StrictJsonError):
        digest([item | {"value": "x" * PART + item["value"] + "x"}])


@pytest.mark.parametrize("length", [0, PART, PART + 1])
def test_a_value_of_any_shape_with_a_long_text_has_the_digest_of_the_canonical_form(length):
    text = "é" * length
    for value in ([1, text, 2.5, [text]], {"\uffff": text, "\U0001f600": [], "a": {"b": [text, text, None]}}):
        items = [{"value": value, "status": "succeeded"}, {"status": "failed"}]
        assert digest(items) == hashlib.sha256(canonical(items)).hexdigest()[:16]


LONG = "x" * 4_000_000


@pytest.mark.parametrize(
    "value", [LONG, [{"role": "user", "content": "?"}, {"role": "bot", "content": LONG}]]
)
def test_the_digest_of_a_long_text_needs_no_second_one(value):
    items = [{"status": "succeeded", "value": value}]
    digest(items)
    tracemalloc.start()
    try:
        digest(items)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2_000_000
