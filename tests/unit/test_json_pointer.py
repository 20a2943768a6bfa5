import pytest

from support.spec_vectors import load_vectors
from tidewire.protocol.document import json_pointer
from tidewire.protocol.document.json_pointer import PointerError

VECTORS = load_vectors("diff/pointers")["vectors"]
GOOD = [vector for vector in VECTORS if vector["tokens"] is not None]
BAD = [vector for vector in VECTORS if vector["tokens"] is None]


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_pointer_is_parsed_and_built_again(vector):
    assert json_pointer.parse(vector["pointer"]) == tuple(vector["tokens"])
    assert json_pointer.build(vector["tokens"]) == vector["pointer"]


@pytest.mark.parametrize("vector", BAD, ids=lambda vector: vector["name"])
def test_malformed_pointer_is_refused(vector):
    with pytest.raises(PointerError):
        json_pointer.parse(vector["pointer"])


@pytest.mark.parametrize("bad", ["/\ud83d", "/a/\udc00b", "/" + "x" * 300 + "\ud83d"])
def test_lone_surrogate_in_a_pointer_is_refused(bad):
    with pytest.raises(PointerError, match="surrogate"):
        json_pointer.parse(bad)


def test_pointer_too_long_for_the_cache_is_parsed():
    long = "/" + "a" * json_pointer.MAX_CACHED_LENGTH
    assert json_pointer.parse(long) == ("a" * json_pointer.MAX_CACHED_LENGTH,)
    assert json_pointer.parse("/a" * 100_000) == ("a",) * 100_000


def test_pointer_cache_is_bounded():
    for n in range(json_pointer.MAX_CACHED_POINTERS + 10):
        json_pointer.parse(f"/bounded/{n}")
    json_pointer.parse("/" + "b" * json_pointer.MAX_CACHED_LENGTH)
    assert json_pointer._cached_split.cache_info().currsize <= json_pointer.MAX_CACHED_POINTERS


def test_pointer_is_built_from_names_and_indexes():
    assert json_pointer.build(["items", 0, "value"]) == "/items/0/value"


@pytest.mark.parametrize(("token", "index"), [("0", 0), ("7", 7), ("10", 10), ("9007199254740992", 2**53)])
def test_array_index_is_parsed(token, index):
    assert json_pointer.array_index(token) == index


@pytest.mark.parametrize(
    "token",
    [
        "",
        "-",
        "-0",
        "-1",
        "+1",
        "00",
        "01",
        "1.0",
        "1e3",
        " 1",
        "1 ",
        "1\n",
        "0x1",
        "1_0",
        "١",
        "１",
        "²",
        "9" * 17,
        "9" * 5000,
    ],
)
def test_invalid_array_index_is_refused(token):
    with pytest.raises(PointerError, match="array index"):
        json_pointer.array_index(token)
