"""Bytes annotated with `Binary`, and arrays of NumPy, as inputs and as values, from the server to the client and back."""

import base64
import json
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import numpy as np
import pydantic.dataclasses
import pytest
from pydantic import (
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    TypeAdapter,
    field_serializer,
    model_serializer,
)

from tidewire import Binary, Client
from tidewire.errors import InvalidInputError, InvalidValueError, JobFailedError
from tidewire_server import Append, Server, Stream

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"
TEXT = base64.b64encode(PNG).decode()


class Picture(BaseModel):
    content: Binary
    layers: list[Binary] = []


@dataclass
class Page:
    scan: Binary
    pictures: list[Picture] = field(default_factory=list)


def make_server() -> Server:
    server = Server()

    @server.endpoint
    def model(picture: Picture) -> Picture:
        assert (picture.content, picture.layers) == (PNG, [PNG])
        return Picture(content=PNG, layers=[PNG])

    @server.endpoint
    def dataclasses(page: Page, pages: list[Page]) -> list[Page]:
        assert [each.scan for each in (page, *pages)] == [PNG] * 3
        return [page, *pages]

    @server.endpoint
    def lists(contents: list[Binary]) -> list[Binary]:
        return [*contents, PNG]

    @server.endpoint
    def yields(content: Binary) -> Iterator[list[Page]]:
        pages = []
        for _ in range(3):
            pages.append(Page(content))
            yield pages

    @server.endpoint
    def appends(content: Binary) -> Iterator[Append[list[Page]]]:
        for _ in range(3):
            yield Append([Page(content)])

    @server.endpoint
    def streams(stream: Stream[list[Page]], content: Binary) -> None:
        stream.append([Page(content), Page(content)])
        stream.append([Page(content)])

    @server.endpoint
    def without_annotation() -> list[bytes]:
        return [b"a", PNG]

    @server.endpoint
    def echo(of: Any) -> Any:
        return of

    return server


@pytest.fixture(scope="module")
def client():
    with make_server().running() as url, Client(url) as client:
        yield client


def test_bytes_in_models_dataclasses_and_lists_arrive_in_both_directions(client):
    picture = Picture(content=PNG, layers=[PNG])
    assert client.run("model", picture, returns=Picture) == picture
    page = Page(PNG, [picture])
    found = client.run("dataclasses", page=page, pages=[page, Page(PNG)], returns=list[Page])
    assert found == [page, page, Page(PNG)]
    contents = TypeAdapter(list[Binary])
    assert client.run("lists", contents=[TEXT], returns=contents) == [PNG, PNG]
    assert client.run("lists", contents=[TEXT]) == [TEXT, TEXT]


class Pages(list[Any]):
    pass


@dataclass(slots=True)
class Slotted:
    scan: Binary


@pytest.mark.parametrize(
    "value",
    [
        deque([Page(PNG)]),
        Pages([Page(PNG)]),
        OrderedDict(a=Page(PNG)),
        {"a": deque([Page(PNG)])},
        [Slotted(PNG)],
        Slotted(PNG),
    ],
)
def test_bytes_in_dataclasses_are_sent_as_base64_in_every_container(client, value):
    sent = client.run("echo", of=value)
    while "scan" not in sent:
        (sent,) = sent.values() if isinstance(sent, dict) else sent
    assert sent["scan"] == TEXT


@pytest.mark.parametrize("endpoint", ["yields", "appends", "streams"])
def test_bytes_in_yielded_and_appended_values_arrive(client, endpoint):
    assert client.run(endpoint, content=TEXT, returns=list[Page]) == [Page(PNG)] * 3


def test_value_that_is_not_base64_is_refused(client):
    with pytest.raises(InvalidInputError, match=r'/input/contents/1: must be base64, .*; received "@"'):
        client.run("lists", contents=[TEXT, "@"])
    with pytest.raises(InvalidValueError, match=r'must be base64, .*; received "@"'):
        client.run("echo", of="@", returns=TypeAdapter(Binary))


def test_bytes_without_the_annotation_are_refused_with_its_name(client):
    with pytest.raises(JobFailedError, match=r"/1: not JSON: .* annotate it with tidewire_server\.Binary"):
        client.run("without_annotation")
    for content in PNG, b"ascii", bytearray(PNG):
        with pytest.raises(
            TypeError,
            match=r"^input\.of\[0\]: bytes cannot be sent as JSON; pass them in a model .* tidewire\.Binary",
        ):
            client.run("echo", of=[content])

    for content in PNG, b"ascii":
        for member in (
            Unannotated(content=content),
            UnannotatedPage(content),
            UnannotatedRecord(content),
        ):
            for value in (member, [member], {"a": deque([member])}):
                with pytest.raises(
                    TypeError,
                    match=r"^input\.of\S*\.content: bytes cannot be sent as JSON; .* tidewire\.Binary",
                ):
                    client.run("echo", of=value)


class Unannotated(BaseModel):
    content: Any


@dataclass
class UnannotatedPage:
    content: bytes


@pydantic.dataclasses.dataclass
class UnannotatedRecord:
    content: bytes


class Contents(BaseModel):
    model_config = ConfigDict(extra="allow")
    of: bytes = Field(b"", alias="OF")
    many: list[bytes | None] = []
    by_name: dict[str, set[bytes]] = {}
    page: UnannotatedPage | None = None
    root: RootModel[bytes] | None = None
    numbers: list[int] = [1]


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"OF": b"a"}, r"\.of"),
        ({"many": [None, b"a"]}, r"\.many\[1\]"),
        ({"by_name": {"x": {b"a"}}}, r"\.by_name\.x\[0\]"),
        ({"page": UnannotatedPage(b"a")}, r"\.page\.content"),
        ({"root": RootModel[bytes](b"a")}, r"\.root"),
        ({"other": b"a"}, r"\.other"),
    ],
)
def test_error_for_bytes_names_the_member_of_the_model(client, members, path):
    with pytest.raises(TypeError, match=f"^input\\.of{path}: bytes cannot be sent as JSON; pass them in"):
        client.run("echo", of=Contents(**members))


class Handled(BaseModel):
    encoded: Base64Bytes
    decoded: Annotated[bytes, PlainSerializer(bytes.decode)]
    decoded_in_json: Annotated[bytes, PlainSerializer(bytes.decode, when_used="json")]
    by_method: bytes
    excluded: bytes = Field(exclude=True)
    optional: Binary | None
    many: dict[str, list[Binary]]
    empty: bytes

    @field_serializer("by_method", when_used="json")
    def _decode(self, content: bytes) -> str:
        return content.decode()


class Configured(BaseModel):
    model_config = ConfigDict(ser_json_bytes="utf8")
    content: bytes


class InBase64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64")
    content: bytes


class Whole(BaseModel):
    content: bytes

    @model_serializer
    def _whole(self) -> dict[str, str]:
        return {"content": self.content.decode()}


class Empty(BaseModel):
    pass


@pydantic.dataclasses.dataclass
class HandledRecord:
    content: Annotated[bytes, PlainSerializer(bytes.decode, when_used="json")]


def test_a_serializer_for_bytes_is_respected(client):
    handled = Handled(
        encoded=b"YQ==",
        decoded=b"a",
        decoded_in_json=b"a",
        by_method=b"a",
        excluded=b"a",
        optional=b"a",
        many={"x": [b"a"]},
        empty=b"",
    )
    assert client.run("echo", of=[handled]) == [
        {
            "encoded": "YQ==",
            "decoded": "a",
            "decoded_in_json": "a",
            "by_method": "a",
            "optional": "YQ==",
            "many": {"x": ["YQ=="]},
            "empty": "",
        }
    ]
    for kind in (Configured, Whole, HandledRecord):
        assert client.run("echo", of=kind(content=b"a")) == {"content": "a"}
    assert client.run("echo", of=InBase64(content=b"a")) == {"content": "YQ=="}
    assert client.run("echo", of=Empty()) == {}


def test_schema_of_bytes_is_a_base64_string(client):
    description = client.describe("lists")
    assert description.value_schema["items"] == {"type": "string", "format": "base64"}
    assert description.input_schema["properties"]["contents"]["items"] == {
        "type": "string",
        "format": "base64",
    }


def test_python_keeps_bytes_and_decodes_text():
    picture = Picture(content=PNG)
    assert picture.model_dump()["content"] == PNG
    assert json.loads(picture.model_dump_json())["content"] == TEXT
    assert Picture(content=TEXT).content == PNG


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        ({"a": [np.array([0.5]), np.int8(1)]}, {"a": [[0.5], 1]}),
        (Picture(content=b""), {"content": "", "layers": []}),
    ],
)
def test_numpy_values_are_accepted_as_input_and_as_value(client, value, expected):
    assert client.run("echo", of=value) == expected
    assert client.submit_batch("echo", [{"of": value}]).results() == [expected]
    server = Server()

    @server.endpoint
    def give() -> Any:
        return value

    assert server.call("give") == expected


class NaT(datetime):
    """A missing date, whose members are NaN, as in pandas."""

    year = float("nan")


class MetaTensor:
    """A tensor without data, as on the device `meta` of PyTorch."""

    def tolist(self):
        raise NotImplementedError("no data")


@pytest.mark.parametrize(
    ("value", "place", "why"),
    [
        ([1, {"a/b": object()}], "/input/of/1/a~1b", "object has no JSON form"),
        ([np.array([1j])], "/input/of/0", "complex numbers have no JSON form"),
        ([{"when": NaT(2026, 1, 1)}], "/input/of/0/when", "'float' object"),
        ({"x": MetaTensor()}, "/input/of/x", "no data"),
        (np.array([0.5, np.nan]), "/input/of/1", "nan is not a JSON number"),
    ],
)
def test_input_that_has_no_json_form_is_refused_at_its_place(client, value, place, why):
    with pytest.raises(InvalidInputError, match=f"{place}(:|').*{why}"):
        client.run("echo", of=value)


def test_bytes_in_an_array_are_refused_like_other_bytes(client):
    with pytest.raises(TypeError, match=r"^input\.of: bytes cannot be sent as JSON; pass them in a model"):
        client.run("echo", of=np.array([b"abc"]))
