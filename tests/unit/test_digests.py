import hashlib
import tracemalloc

import pytest

from support.spec_vectors import load_vectors
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import (
    PART,
    IntegrityError,
    canonical,
    digest,
    text_check,
    verify,
)
from tidewire.protocol.strict_json import StrictJsonError

VECTORS = load_vectors("diff/proofs")["vectors"]
CHECKS = [vector for vector in VECTORS if "check" in vector]
DIGESTS = [vector for vector in VECTORS if "digest" in vector]


@pytest.mark.parametrize("vector", CHECKS, ids=lambda vector: vector["name"])
def test_check_verifies_a_text(vector):
    assert text_check("/t", vector["text"]) == vector["check"]
    document = Document({"t": vector["text"]})
    verify(document, [vector["check"]])
    path, length, crc = vector["check"]
    for wrong in ([path, length + 1, crc], [path, length, crc ^ 1]):
        with pytest.raises(IntegrityError):
            verify(document, [wrong])


def test_check_verifies_the_length_of_an_array():
    document = Document({"n": [1, [2, 3]]})
    verify(document, [["/n", 2], ["/n/1", 2]])
    with pytest.raises(IntegrityError):
        verify(document, [["/n", 3]])


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (["/t", 2, 0], "check of '/t' failed: the length in code points is 3, but 2 was expected"),
        (["/t", 3, 1], "check of '/t' failed: the CRC-32 is 891568578, but 1 was expected"),
        (["/n", 5], "check of '/n' failed: the number of elements is 2, but 5 was expected"),
        (["/q", 1, 1], "check of '/q': nothing at '/q': there is no member 'q'"),
        (["/n", 2, 0], "check of '/n': '/n' is an array, not a text"),
        (["/t", 3], "check of '/t': '/t' is a text, not an array"),
    ],
)
def test_failed_check_names_the_path_and_the_expected_and_actual_values(check, message):
    with pytest.raises(IntegrityError) as failure:
        verify(Document({"t": "abc", "n": [1, 2]}), [check])
    assert str(failure.value) == message


@pytest.mark.parametrize("vector", DIGESTS, ids=lambda vector: vector["name"])
def test_digest_is_computed_from_the_canonical_form(vector):
    assert hashlib.sha256(vector["canonical"].encode()).hexdigest()[:16] == vector["digest"]
    assert digest(vector["items"]) == vector["digest"]


@pytest.mark.parametrize("bad", [2**53 + 1, float("nan"), float("inf"), "\ud83d"], ids=repr)
@pytest.mark.parametrize("before", [[1.5] * 20, [1.0] * 20, [1] * 20, [1.5] * 20 + [True]], ids=repr)
def test_array_with_a_value_that_is_not_json_has_no_digest(before, bad):
    with pytest.raises(StrictJsonError):
        digest([[*before, bad]])


def test_digest_of_100_000_levels_raises_an_error_without_overflowing():
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
def test_long_text_has_the_digest_of_its_canonical_form(length, letters, others):
    text = (letters * length)[:length]
    for items in ([{**others, "value": text}], [{"value": text, **others}, {"value": text}]):
        assert digest(items) == hashlib.sha256(canonical(items)).hexdigest()[:16]


@pytest.mark.parametrize("item", [{"value": "\ud800"}, {"value": "", "x": "\ud800"}, {"value": "", 1: 2}])
def test_invalid_value_next_to_a_long_text_has_no_digest(item):
    with pytest.raises(StrictJsonError):
        digest([item | {"value": "x" * PART + item["value"] + "x"}])


@pytest.mark.parametrize("length", [0, PART, PART + 1])
def test_long_text_in_any_value_has_the_digest_of_its_canonical_form(length):
    text = "é" * length
    for value in ([1, text, 2.5, [text]], {"\uffff": text, "\U0001f600": [], "a": {"b": [text, text, None]}}):
        items = [{"value": value, "status": "succeeded"}, {"status": "failed"}]
        assert digest(items) == hashlib.sha256(canonical(items)).hexdigest()[:16]


LONG = "x" * 4_000_000


@pytest.mark.parametrize(
    "value", [LONG, [{"role": "user", "content": "?"}, {"role": "bot", "content": LONG}]]
)
def test_digest_of_a_long_text_does_not_copy_the_text(value):
    items = [{"status": "succeeded", "value": value}]
    digest(items)
    tracemalloc.start()
    try:
        digest(items)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2_000_000
