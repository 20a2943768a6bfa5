"""The `rollback` capability of an endpoint: true for all that stream, and enforced where the author declares false."""

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
def replaces(stream: Stream[str]) -> None:
    stream.set("", "abc")
    stream.set("", "x")


@server.endpoint(capabilities={"rollback": False})
def truncates_in_spite_of_its_promise(stream: Stream[str]) -> None:
    stream.append("abc")
    helper(stream)


@server.endpoint(capabilities={"rollback": False})
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
        ("appends", True),
        ("truncates", True),
        ("truncates_in_a_helper", True),
        ("truncates_in_spite_of_its_promise", False),
        ("sets_shorter_text", False),
        ("yields", True),
        ("yields_shorter_text", False),
        ("declared", True),
        ("returns", False),
    ],
)
def test_every_function_that_streams_may_roll_back_unless_it_promises_otherwise(name, rollback):
    assert server.endpoints[name].capabilities(1).rollback is rollback


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("appends", "a"),
        ("truncates", "ab"),
        ("truncates_in_a_helper", "ab"),
        ("replaces", "x"),
        ("yields", "1"),
        ("declared", "ab"),
        ("returns", "a"),
    ],
)
def test_functions_within_their_rollback_capability_succeed(name, value):
    assert server.call(name) == value


@pytest.mark.parametrize(
    "name", ["truncates_in_spite_of_its_promise", "sets_shorter_text", "yields_shorter_text"]
)
def test_a_rollback_in_spite_of_the_promise_raises_with_the_remedy(name):
    with pytest.raises(ValueError, match=r"capabilities=\{'rollback': True\}"):
        server.call(name)
