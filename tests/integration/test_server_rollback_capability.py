"""The `rollback` capability of an endpoint: declared or inferred from its function, and enforced at run time."""

from collections.abc import Iterator

import pytest

from tidewire_server import Server, Stream

server = Server()


@server.endpoint
def appends(stream: Stream[str]) -> None:
    stream.append("a")


@server.endpoint
def truncates(stream: Stream[str]) -> None:
    stream.append("abc")
    stream.truncate(1)


def helper(stream: Stream[str]) -> None:
    stream.truncate(1)


@server.endpoint
def truncates_in_a_helper(stream: Stream[str]) -> None:
    stream.append("abc")
    helper(stream)


@server.endpoint
def sets_shorter_text(stream: Stream[str]) -> None:
    stream.set("", "ab")
    stream.set("", "abc")
    stream.set("", "x")


@server.endpoint
def yields(n: int = 2) -> Iterator[str]:
    for i in range(n):
        yield str(i)


@server.endpoint(capabilities={"rollback": False})
def yields_shorter_text(n: int = 2) -> Iterator[str]:
    yield "ab"
    yield "a"


@server.endpoint(capabilities={"rollback": True})
def declared(stream: Stream[str]) -> None:
    stream.append("abc")
    helper(stream)


@server.endpoint
def returns(text: str = "a") -> str:
    return text


@pytest.mark.parametrize(
    ("name", "rollback"),
    [
        ("appends", False),
        ("truncates", True),
        ("truncates_in_a_helper", False),
        ("sets_shorter_text", False),
        ("yields", True),
        ("yields_shorter_text", False),
        ("declared", True),
        ("returns", False),
    ],
)
def test_rollback_is_declared_or_inferred_from_the_function(name, rollback):
    assert server.endpoints[name].capabilities(1).rollback is rollback


@pytest.mark.parametrize("name", ["appends", "truncates", "yields", "declared", "returns"])
def test_functions_within_their_rollback_capability_succeed(name):
    assert (
        server.call(name)
        == {"appends": "a", "truncates": "ab", "yields": "1", "declared": "ab", "returns": "a"}[name]
    )


@pytest.mark.parametrize("name", ["truncates_in_a_helper", "sets_shorter_text", "yields_shorter_text"])
def test_a_rollback_without_the_capability_raises_with_the_remedy(name):
    with pytest.raises(ValueError, match=r"capabilities=\{'rollback': True\}"):
        server.call(name)
