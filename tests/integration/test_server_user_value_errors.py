"""Errors about values that cannot be sent name the path within the value, for every form of function."""

import io
import math
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from support.nested_arrays import nested
from tidewire_server import Server, Stream
from tidewire_server.errors import InvalidValueError


class Box(BaseModel):
    held: Any


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {"b": object()}]}, "/a/1/b: not JSON: object has no JSON form"),
        (Box(held=[1, {2: object()}]), "/held/1/2: not JSON: object has no JSON form"),
        ([{"a/b": b"\xff"}], "/0/a~1b: not JSON: 'utf-8' codec can't decode"),
        ({"a": ["x", "b\ud800"]}, "/a/1: lone surrogate at character 1"),
        ({"a": [{"b\ud800": 1}]}, "/a/0: not JSON: lone surrogate in the name"),
        ([1, {"it's": math.nan}], "/1/it's: nan is not a JSON number; send null or a string"),
        (2**60, "the value: integer beyond ±2^53; send it as a string"),
        (object(), "the value: not JSON: object has no JSON form"),
        (io.StringIO("a\nb"), "the value: an open file; return its text, file.read(), or its bytes"),
        (
            type("Image", (), {"__module__": "PIL.Image"})(),
            (
                "the value: not JSON: Image has no JSON form; encode it, for example as PNG, for a field of the type "
                "tidewire.Binary"
            ),
        ),
        ([[1]] * 2 + [nested(80)], "nested deeper than 56 levels"),
    ],
)
@pytest.mark.parametrize("kind", ["returned", "yielded_first", "yielded_later", "in_a_batch"])
def test_an_invalid_value_raises_with_its_path(kind, value, message):
    server = Server()

    @server.endpoint(name="returned")
    def returned() -> Any:
        return value

    @server.endpoint(name="yielded_first")
    def first() -> Iterator[Any]:
        yield value

    @server.endpoint(name="yielded_later")
    def later() -> Iterator[Any]:
        yield {"a": 1}
        yield value

    @server.endpoint(name="in_a_batch", batch=True)
    def batched(n: list[int]) -> list[Any]:
        return [value for _ in n]

    with pytest.raises(InvalidValueError) as refused:
        server.call(kind, **({"n": 1} if kind == "in_a_batch" else {}))
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda stream: stream.append(["x"]),
            "only a string can be appended to a text",
        ),
        (lambda stream: stream.truncate(5), "cannot drop 5 from a length of 2"),
        (lambda stream: stream.set("/b/c", 2), "/b/c: there is no member 'b'"),
        (lambda stream: stream.set("/a", [1, math.nan]), "/a/1: nan is not a JSON number"),
        (
            lambda stream: stream.append("x", at="/a"),
            "/a: only an array can be appended to an array, not a text",
        ),
    ],
)
def test_an_invalid_stream_write_raises_with_its_path(write, message):
    server = Server()

    @server.endpoint(capabilities={"rollback": True})
    def writes(stream: Stream[Any], text: bool) -> None:
        stream.set("", "ab" if text else {"a": [1]})
        write(stream)

    with pytest.raises(ValueError, match=f"^({message})"):
        server.call("writes", text="/" not in message)
