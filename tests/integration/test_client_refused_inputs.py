"""Inputs that would be converted without an error, but not as intended, raise TypeError before a request is sent."""

import io
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import anyio
import pydantic.dataclasses
import pytest
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, RootModel, create_model, field_serializer
from typing_extensions import TypeAliasType, TypedDict

from tidewire import AsyncClient, Client
from tidewire.errors import ItemFailedError, TidewireError
from tidewire.inputs.submit_members import jsonable
from tidewire.testing import FakeServer

CLOSED_PORT_URL = "http://127.0.0.1:1"


@dataclass
class Record:
    image: Any


class Model(BaseModel):
    image: Any
    tags: set[str] = set()


class Converted(BaseModel):
    excluded: Any = Field(None, exclude=True)
    annotated: Annotated[Any, PlainSerializer(lambda file: file.read())]


class Serialized(BaseModel):
    image: Any

    @field_serializer("image")
    def _read(self, file: Any) -> str:
        return str(file.read())


@pytest.fixture
def file() -> Iterator[Any]:
    with Path(__file__).open() as file:
        yield file


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"image": "FILE"}, r"^input\.image: an open file cannot be sent as JSON; pass file\.read"),
        ({"images": ["a", "FILE"]}, r"^input\.images\[1\]: an open file"),
        ({"image": io.BytesIO(b"x")}, r"^input\.image: an open file"),
        ({"page": {"image": io.StringIO("x")}}, r"^input\.page\.image: an open file"),
        ({"page": Record("FILE")}, r"^input\.page\.image: an open file"),
        ({"page": [Model(image=io.BytesIO())]}, r"^input\.page\[0\]\.image: an open file"),
        ({"stops": {"a", "b"}}, r"^input\.stops: a set.*pass a list"),
        ({"stops": (1, frozenset({1}))}, r"^input\.stops\[1\]: a set"),
        ({"stops": deque([{1}])}, r"^input\.stops\[0\]: a set"),
        ({"z": 1j}, r"^input\.z: a complex number cannot be sent as JSON; pass \[z\.real, z\.imag\]"),
        ({"table": {(1, 2): 3}}, r"^input\.table: a tuple cannot be a key of a JSON object; pass strings"),
    ],
)
def test_the_error_names_the_member_and_the_remedy(members, message, file):
    def opened(value):
        if isinstance(value, list):
            return [opened(each) for each in value]
        if isinstance(value, Record):
            return Record(file)
        return file if value == "FILE" else value

    with Client(CLOSED_PORT_URL) as client, pytest.raises(TypeError, match=message):
        client.submit("caption", **{name: opened(value) for name, value in members.items()})


@pytest.mark.parametrize("mode", ["w+b", "w+"])
def test_temporary_files_are_open_files(mode):
    with tempfile.NamedTemporaryFile(mode) as file, tempfile.SpooledTemporaryFile(mode=mode) as spooled:
        for each in (file, spooled, sys.stdin):
            with pytest.raises(TypeError, match="^input: an open file"):
                jsonable(each, "/input")


def test_an_input_of_a_batch_or_map_is_named_by_its_number_and_nothing_is_sent(file):
    with FakeServer() as server, Client(server.url) as client:
        server.endpoint("caption").returns("x")
        with pytest.raises(TypeError, match=r"^input: an open file"):
            client.run("caption", file)
        with pytest.raises(TypeError, match=r"^inputs\[1\]\.image: an open file"):
            client.submit_batch("caption", [{"image": "a"}, {"image": file}])
        with pytest.raises(TypeError, match=r"^shared\.image: an open file"):
            client.submit_batch("caption", [{}], shared={"image": file})
        assert server.submits == []
        # The values of the inputs before it are delivered, so it is an error in the place of its own value.
        value, error = client.map("caption", [{}, {"tags": {1}}], return_exceptions=True)
        assert value == "x"
        assert isinstance(error, ItemFailedError)
        assert "inputs[1].tags: a set" in str(error.__cause__ or error)
    assert file.tell() == 0


def test_the_async_client_raises_as_well(file):
    async def main():
        async with AsyncClient(CLOSED_PORT_URL) as client:
            with pytest.raises(TypeError, match=r"^input\.image: an open file"):
                await client.submit("caption", image=file)

    anyio.run(main)


def test_values_whose_conversion_is_intended_are_accepted(file):
    found = jsonable(
        {
            "model": Model(image="x", tags={"a"}),
            "converted": Converted(excluded=file, annotated=io.StringIO("text")),
            "serialized": Serialized(image=io.StringIO("text")),
            "tuple": (1, "a"),
            "keys": {1: "one"},
            "generated": (number for number in range(3)),
        },
        "/input",
    )
    assert found == {
        "model": {"image": "x", "tags": ["a"]},
        "converted": {"annotated": "text"},
        "serialized": {"image": "text"},
        "tuple": [1, "a"],
        "keys": {"1": "one"},
        "generated": [0, 1, 2],
    }


def test_an_input_that_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TidewireError, match="cannot be serialized"):
        jsonable(loop, "/input")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    image: Any = None


@pydantic.dataclasses.dataclass
class Checked:
    image: Any


SILENT_CONVERSIONS = [
    ({"a"}, "a set"),
    (frozenset(), "a set"),
    (1j, "a complex number"),
    ({(1, 2): 3}, "a tuple cannot be a key of a JSON object"),
    (b"ab", "bytes"),
    (memoryview(b"ab"), "bytes"),
]


@pytest.mark.parametrize(("member", "message"), SILENT_CONVERSIONS)
@pytest.mark.parametrize("kind", [Record, Model, Checked], ids=lambda kind: kind.__name__)
def test_a_field_of_any_type_is_as_strict_as_a_dict(kind, member, message):
    for nested, place in [(member, ""), ([member], r"\[0\]"), ({"a": (member,)}, r"\.a\[0\]")]:
        for value, before in [(kind(image=nested), ""), ([Record(kind(image=nested))], r"\[0\]\.image")]:
            with pytest.raises(TypeError, match=rf"^input{before}\.image{place}: {message}"):
                jsonable(value, "/input")


@pytest.mark.parametrize(("member", "message"), SILENT_CONVERSIONS)
def test_an_extra_member_and_a_root_are_as_strict_as_a_dict(member, message):
    with pytest.raises(TypeError, match=rf"^input\.other: {message}"):
        jsonable(Open(other=member), "/input")
    with pytest.raises(TypeError, match=rf"^input\.image: {message}"):
        jsonable({"image": RootModel[Any](member)}, "/input")


Tags = TypeAliasType("Tags", set[int])


class Options(TypedDict):
    tags: set[int]


class Pair(NamedTuple):
    tags: set[int]
    number: int


FIELDS: dict[str, tuple[Any, Any]] = {
    "tags": (set[int] | None, None),
    "frozen": (frozenset, frozenset()),
    "nested": (dict[str, list[set[int]]] | None, None),
    "alias": (Tags | None, None),
    "options": (Options | None, None),
    "pair": (Pair | None, None),
    "number": (complex, 0j),
    "table": (dict[tuple[int, int], int] | None, None),
    "serialized": (Annotated[Any, PlainSerializer(sorted)], ()),
    "many": (list[Annotated[Any, PlainSerializer(sorted)]] | None, None),
}
"""Types and defaults of fields whose types ask for pydantic's conversion."""
Asking = make_dataclass(
    "Asking", [(name, kind, field(default=default)) for name, (kind, default) in FIELDS.items()]
)
AskingModel = create_model("AskingModel", **FIELDS)


@pytest.mark.parametrize("kind", [Asking, AskingModel])
def test_a_field_whose_type_asks_for_the_conversion_is_converted(kind):
    value = kind(
        tags={1},
        frozen=frozenset({1}),
        nested={"a": [{1}]},
        alias={1},
        options={"tags": {1}},
        pair=Pair({1}, 2),
        number=1j,
        table={(1, 2): 3},
        serialized={2, 1},
        many=[{2, 1}],
    )
    expected = {
        "tags": [1],
        "frozen": [1],
        "nested": {"a": [[1]]},
        "alias": [1],
        "options": {"tags": [1]},
        "pair": [[1], 2],
        "number": "1j",
        "table": {"1,2": 3},
        "serialized": [1, 2],
        "many": [[1, 2]],
    }
    assert jsonable(value, "/input") == expected
    assert jsonable([{"a": value}], "/input") == [{"a": expected}]


def test_a_type_asks_only_for_its_own_conversion():
    @dataclass
    class Page:
        tags: list[tuple[int, int]]

    for member, message in [({(1, 2): 3}, "a tuple cannot be a key"), ({1}, "a set")]:
        with pytest.raises(TypeError, match=rf"^input\.tags\[0\]: {message}"):
            jsonable(Page([member]), "/input")  # type: ignore[list-item]


def test_the_sets_of_a_class_whose_types_cannot_be_read_are_converted():
    @dataclass
    class Page:
        tags: "set[int]"
        other: "Unknown"  # type: ignore[name-defined]  # noqa: F821

    assert jsonable(Page({1}, 2), "/input") == {"tags": [1], "other": 2}
