"""What an endpoint tells of rollback is true: said by its author, or seen in its function, and then held to."""

from collections.abc import Iterator

import pytest

from tidewire_server import Server, Stream

server = Server()


@server.endpoint
def grows(stream: Stream[str]) -> None:
    stream.append("a")


@server.endpoint
def takes_back(stream: Stream[str]) -> None:
    stream.append("abc")
    stream.truncate(1)


def helper(stream: Stream[str]) -> None:
    stream.truncate(1)


@server.endpoint
def takes_back_elsewhere(stream: Stream[str]) -> None:
    stream.append("abc")
    helper(stream)


@server.endpoint
def sets_anew(stream: Stream[str]) -> None:
    stream.set("", "ab")
    stream.set("", "abc")
    stream.set("", "x")


@server.endpoint
def yields(n: int = 2) -> Iterator[str]:
    for i in range(n):
        yield str(i)


@server.endpoint(capabilities={"rollback": False})
def yields_less(n: int = 2) -> Iterator[str]:
    yield "ab"
    yield "a"


@server.endpoint(capabilities={"rollback": True})
def declared(stream: Stream[str]) -> None:
    stream.append("abc")
    helper(stream)


@server.endpoint
def at_once(text: str = "a") -> str:
    return text


@pytest.mark.parametrize(
    ("name", "rollback"),
    [
        ("grows", False),
        ("takes_back", True),
        ("takes_back_elsewhere", False),
        ("sets_anew", False),
        ("yields", True),
        ("yields_less", False),
        ("declared", True),
        ("at_once", False),
    ],
)
def test_rollback_is_told_as_declared_or_as_the_function_shows(name, rollback):
    assert server.endpoints[name].capabilities(1).rollback is rollback


@pytest.mark.parametrize("name", ["grows", "takes_back", "yields", "declared", "at_once"])
def test_what_was_told_is_kept(name):
    assert (
        server.call(name)
        == {"grows": "a", "takes_back": "ab", "yields": "1", "declared": "ab", "at_once": "a"}[name]
    )


@pytest.mark.parametrize("name", ["takes_back_elsewhere", "sets_anew", "yields_less"])
def test_what_would_break_the_promise_is_refused_with_the_remedy(name):
    with pytest.raises(ValueError, match=r"capabilities=\{'rollback': True\}"):
        server.call(name)
