"""Endpoint signatures: the schemas of input and value, and functions that cannot be endpoints."""

import functools
import pickle
import typing
from collections.abc import AsyncIterator, Iterator
from enum import Enum
from typing import Annotated, Any, Literal

import orjson
import pytest
from pydantic import Base64Bytes, Base64Str, BaseModel, ConfigDict, Field, RootModel
from pydantic.dataclasses import dataclass

from tidewire.protocol.strict_json import loads
from tidewire_server import Binary, Context, Server, Stream
from tidewire_server.endpoints.endpoint import Endpoint, Options
from tidewire_server.errors import ProblemError


class Color(Enum):
    RED = "red"


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Encoded(BaseModel):
    content: Base64Bytes


class Album(BaseModel):
    pages: dict[str, list[Encoded] | None] = {}
    inside: "Album | None" = None


@dataclass
class EncodedText:
    content: Base64Str = "eA=="


class Picture(BaseModel):
    content: Binary


class Page(BaseModel):
    model_config = ConfigDict(frozen=True)
    url: str = Field(min_length=1)
    depth: int = 1
    labels: list[str] = []


class Slotted(BaseModel):
    __slots__ = ("cache",)
    a: int = 1


class Numbers(RootModel[list[int]]):
    pass


class Square(BaseModel):
    kind: Literal["square"]
    side: float


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


def endpoint(function: Any, **options: Any) -> Endpoint:
    return Endpoint(function, Options(**options))


def test_input_members_have_the_names_of_the_parameters():
    def odd(
        json: str,
        _private: int = 1,
        model_x: float = 2,
        *,
        copy: Annotated[int, Field(ge=3)] = 3,
        schema: Any = None,
    ) -> str:
        return f"{json} {_private} {model_x} {copy} {schema}"

    found = endpoint(odd)
    assert list(found.input.schema["properties"]) == ["json", "_private", "model_x", "copy", "schema"]
    assert found.input.schema["required"] == ["json"]
    assert found.input.schema["properties"]["copy"]["minimum"] == 3
    value = found.input.read({"json": "a", "_private": 5}, "/input")
    assert odd(**found.input.arguments(value, None)) == "a 5 2 3 None"
    assert found.input.as_given(value).json == "a"


def test_empty_input_is_valid_if_all_parameters_have_defaults():
    def some(a: int, b: int = 1) -> int: ...
    def all_of_them(a: int = 1) -> int: ...
    def none() -> int: ...

    assert [endpoint(each).input.defaults for each in (some, all_of_them, none)] == [False, True, True]


def test_enums_and_unions_are_read_from_json():
    def paint(color: Color, shape: Square | Circle, at: tuple[int, int] = (0, 0)) -> str: ...

    found = endpoint(paint)
    value = found.input.read(
        {"color": "red", "shape": {"kind": "circle", "radius": 1}, "at": [1, 2]}, "/input"
    )
    given = found.input.arguments(value, None)
    assert given == {"color": Color.RED, "shape": Circle(kind="circle", radius=1), "at": (1, 2)}
    with pytest.raises(ProblemError) as refused:
        found.input.read({"color": "red", "shape": {"kind": "circle", "radius": "x"}}, "/input")
    assert refused.value.problem.pointer.startswith("/input/shape")


def test_input_model_decides_about_unknown_members():
    def takes_all(request: Open) -> int: ...
    def takes_known(request: Square) -> int: ...

    assert endpoint(takes_all).input.read({"b": 2}, "").b == 2
    found = endpoint(takes_known).input
    assert isinstance(found.read({"kind": "square", "side": 1}, ""), Square)
    with pytest.raises(ProblemError, match="unknown member 'sides'; did you mean 'side'"):
        found.read({"kind": "square", "side": 1, "sides": 1}, "/input")


def test_an_input_without_member_names_is_refused_with_the_form_that_it_needs():
    def double(x: int, y: int = 0) -> int: ...

    with pytest.raises(ProblemError) as refused:
        endpoint(double).input.read(3, "/inputs/0")
    assert refused.value.problem.detail == (
        "/inputs/0: Input should be an object; received 3; pass an object with the members of the input, such as "
        '{"x": …}'
    )


def test_function_that_takes_a_model_gets_an_instance_of_this_model():
    def draw(page: Page): ...
    def draw_all(pages: list[Page]): ...

    given = {"url": "a", "depth": 2}
    found = endpoint(draw).input
    value = found.read(given, "")
    assert pickle.loads(pickle.dumps(found.arguments(value, None)["page"])) == Page(url="a", depth=2)
    assert type(found.as_given(value)) is Page
    batched = endpoint(draw_all, batch=True).input
    value = batched.read(given, "")
    assert batched.batch_arguments([value], Context()) == {"pages": [Page(url="a", depth=2)]}
    assert type(batched.late_joiner(value)) is Page


def test_a_model_may_have_slots():
    def draw(slotted: Slotted): ...
    def draw_two(slotted: Slotted = Slotted(a=2)): ...  # noqa: B008

    assert endpoint(draw).input.read({}, "") == Slotted()
    assert endpoint(draw_two).input.read({}, "") == Slotted(a=2)


def test_default_of_a_model_parameter_sets_the_defaults_of_its_members():
    def draw(page: Page = Page(url="a", labels=["b"])): ...  # noqa: B008 - the usual form of such a default
    def draw_allowed(page: Open = Open(a=2)): ...  # noqa: B008
    def draw_none(page: Page = None): ...  # type: ignore[assignment]

    found = endpoint(draw).input
    assert found.defaults
    assert found.schema["properties"]["url"]["default"] == "a"
    assert found.read({}, "") == Page(url="a", labels=["b"])
    assert found.read({"depth": 3}, "") == Page(url="a", depth=3, labels=["b"])
    with pytest.raises(ProblemError, match="/url: String should have at least 1"):
        found.read({"url": ""}, "")
    assert endpoint(draw_allowed).input.read({"b": 1}, "") == Open(a=2, b=1)
    with pytest.raises(
        TypeError, match="endpoint 'draw_none': page: the default None is not a Page; remove it"
    ):
        endpoint(draw_none)


def test_error_names_the_annotation_without_a_schema():
    def draw(page: Page, at: WithoutSchema) -> int: ...
    def measure(page: Page) -> WithoutSchema: ...

    with pytest.raises(TypeError, match="endpoint 'draw': the annotation of its parameter 'at' has no JSON"):
        endpoint(draw)
    with pytest.raises(TypeError, match="endpoint 'measure': the annotation of its value has no JSON"):
        endpoint(measure)


def test_root_model_is_a_member_of_the_input():
    def total(numbers: Numbers) -> int: ...

    found = endpoint(total).input
    assert found.arguments(found.read({"numbers": [1, 2]}, ""), None) == {"numbers": Numbers([1, 2])}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (Iterator[int], {"type": "integer"}),
        (AsyncIterator[list[str]], {"items": {"type": "string"}, "type": "array"}),
        (Iterator, {}),
        (typing.Iterator, {}),
        (typing.AsyncIterator, {}),
        (typing.Generator, {}),
    ],
)
def test_value_schema_of_a_generator_is_that_of_the_yielded_type(annotation, schema):
    def generate() -> Any:
        yield 1

    generate.__annotations__["return"] = annotation
    assert endpoint(generate).value.schema == schema


def test_stream_parameter_determines_the_initial_value_and_the_columns():
    async def text(s: Stream[str]) -> None: ...
    async def array(s: Stream[list[int]]) -> None: ...
    async def table(s: Stream[dict[str, int]]) -> None: ...
    async def model(s: Stream[Square]) -> None: ...
    async def free(s: Stream[Any]) -> None: ...
    async def returned() -> str: ...

    found = [endpoint(each) for each in (text, array, table, model, free, returned)]
    assert [each.initial(each.input.read({}, "")) for each in found] == ["", [], {}, None, None, None]
    assert [each.columns(each.input.read({}, "")) for each in found] == [[""], [], [], [], [], [""]]
    assert [each.streams for each in found] == [True] * 5 + [False]
    assert [list(each.input.schema["properties"]) for each in found] == [[]] * 6


@pytest.mark.parametrize("annotation", [Stream, Stream | None])
def test_stream_without_the_type_of_its_value_is_refused_at_registration(annotation):
    def bare(out): ...

    bare.__annotations__["out"] = annotation
    with pytest.raises(
        TypeError, match=r"endpoint 'bare': the parameter out is annotated Stream .*write Stream\[str\]"
    ):
        endpoint(bare)


def test_async_functions_and_generators_are_detected():
    class Called:
        async def __call__(self, n: int) -> AsyncIterator[int]:
            yield n

    class Model:
        def run(self, n: int) -> int:
            return n

    async def coroutine(n: int) -> int: ...
    def generator(n: int) -> Iterator[int]:
        yield n

    found = [
        endpoint(Called(), name="called"),
        endpoint(Model().run),
        endpoint(coroutine),
        endpoint(generator),
        endpoint(functools.partial(coroutine), name="partial"),
    ]
    assert [(each.is_async, each.is_generator) for each in found] == [
        (True, True),
        (False, False),
        (True, False),
        (False, True),
        (True, False),
    ]
    assert all(list(each.input.schema["properties"]) == ["n"] for each in found)


def test_decorated_functions_keep_their_annotations():
    def count(n: int) -> list[int]: ...

    class Model:
        @functools.lru_cache  # noqa: B019 - the object lives as long as the test
        def count(self, n: int) -> list[int]: ...

    decorated = [
        functools.lru_cache(count),
        staticmethod(count),
        functools.lru_cache(functools.partial(count)),
        functools.partial(functools.lru_cache(count)),
        Model().count,
    ]
    found = [endpoint(each, name="count") for each in decorated]
    assert [each.input.schema for each in found] == [endpoint(count).input.schema] * len(decorated)
    assert [each.value.schema for each in found] == [endpoint(count).value.schema] * len(decorated)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "two words"}, "is not a valid endpoint name"),
        ({"name": ""}, "'' is not a valid endpoint name"),
        ({"name": 3}, "3 is not a valid endpoint name"),
        ({"name": "1st"}, "is not a valid endpoint name"),
        ({"name": "x" * 65}, "is not a valid endpoint name"),
        ({"concurrency_limit": 0}, "concurrency_limit must be .*, not 0"),
        ({"examples": [{"m": 1}]}, "not a valid input"),
        ({"examples": [{"n": 2**60}]}, "not a valid input: at '/n': integer beyond"),
        ({"capabilities": {"logprobs": {"max_top": "many"}}}, "max_top"),
        ({"concurrency_limit": "4"}, "concurrency_limit must be .*, not '4'"),
        ({"concurrency_limit": 1.5}, "concurrency_limit must be .*, not 1.5"),
        ({"max_queue_size": -1}, "max_queue_size must be .*, not -1"),
        ({"columns": ["text"]}, "columns: 'text': a JSON Pointer"),
        ({"initial": object()}, "initial: "),
        ({"links": {"jobs": b""}}, "'jobs' is not a valid name for a link"),
        ({"links": {"self": b""}}, "'self' is not a valid name for a link"),
        ({"links": {"card": object()}}, "link 'card' is neither bytes nor JSON: "),
        ({"links": {"a/b": b""}}, "'a/b' is not a valid name for a link"),
    ],
)
def test_invalid_option_is_refused_at_registration(options, message):
    def function(n: int = 1) -> int: ...

    with pytest.raises(ValueError, match=message):
        endpoint(function, **options)


class Wide(BaseModel):
    limit: Annotated[int, Field(lt=2**63)] = 2**60


def test_description_has_no_number_or_text_that_clients_refuse():
    def function(
        seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0,
        step: Annotated[int, Field(multiple_of=2**60)] = 0,
        large: int = 2**63 - 1,
        temperature: float = float("inf"),
        text: str = "\ud800",
        wide: Wide = Wide(),  # noqa: B008
    ) -> Annotated[int, Field(le=2**63)]: ...

    found = endpoint(function)
    described = loads(orjson.dumps(found.describe("/v1", 10).model_dump()))
    properties = described["input_schema"]["properties"]
    assert properties["seed"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": float(2**64),
        "default": 0,
        "title": "seed",
    }
    assert properties["step"]["multipleOf"] == float(2**60)
    assert described["value_schema"]["maximum"] == float(2**63)
    assert [name for name, member in properties.items() if "default" in member] == ["seed", "step"]
    assert described["input_schema"]["$defs"]["Wide"]["properties"]["limit"] == {
        "type": "integer",
        "exclusiveMaximum": float(2**63),
        "title": "Limit",
    }
    assert found.input.defaults


def test_unsupported_parameters_are_refused():
    def any_number(*args: int) -> int: ...
    def any_name(**kwargs: int) -> int: ...
    def by_place(a: int, /) -> int: ...
    def unknown(a: "Nowhere") -> int: ...  # noqa: F821
    def no_schema(a: object = None, b: Any = None, *, c: WithoutSchema) -> int: ...
    def two_streams(a: Stream[str], b: Stream[str]) -> None: ...
    def too_large(a: Literal[1, 2**60]) -> None: ...

    for function in (any_number, any_name, by_place, unknown, no_schema, two_streams, too_large):
        with pytest.raises(TypeError, match=function.__name__):
            endpoint(function)


class WithoutSchema:
    """A type without a pydantic schema."""


def test_arguments_of_the_wrong_type_are_refused():
    with pytest.raises(
        TypeError, match="an endpoint must be a function, not 'count'; use @server.endpoint\\(name="
    ):
        Server().endpoint("count")
    with pytest.raises(TypeError, match="validate must be a function"):
        endpoint(lambda n: n, name="f", validate=5)
    with pytest.raises(TypeError, match=r"a list of JSON Pointers, not a string: use \['/text'\]"):
        endpoint(lambda n: n, name="f", columns="/text")


@pytest.mark.parametrize(
    "annotation",
    [Encoded, list[Encoded], Album, EncodedText, Iterator[Encoded | int]],
    ids=["model", "list", "nested", "dataclass", "iterator"],
)
def test_a_value_type_that_decodes_bytes_is_named_in_a_warning(caplog, annotation):
    def picture(n: int) -> Any:
        yield n

    picture.__annotations__["return"] = annotation
    endpoint(picture)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("endpoint 'picture': ")
    assert "tidewire_server.Binary" in record.getMessage()


@pytest.mark.parametrize("annotation", [Picture, list[Picture], Base64Bytes, Binary, Any])
def test_a_value_type_that_keeps_bytes_gives_no_warning(caplog, annotation):
    def picture(of: Encoded) -> Any:
        yield of

    picture.__annotations__["return"] = annotation
    endpoint(picture)
    assert not caplog.records


def test_second_endpoint_of_the_same_name_is_refused():
    server = Server()

    @server.endpoint
    def one() -> int:
        return 1

    with pytest.raises(ValueError, match="an endpoint named 'one' is already registered"):
        server.endpoint(one)


def test_unknown_and_out_of_range_settings_are_refused():
    with pytest.raises(ValueError, match="heartbeet"):
        Server(heartbeet=1)
    with pytest.raises(ValueError, match="merge_window"):
        Server(merge_window=2)
    with pytest.raises(ValueError, match="occurs twice") as error:
        Server(tokens=["a:same", "b:same"])
    assert "same" not in str(error.value).replace("occurs twice", "")
    server = Server(heartbeat=3)
    server.configure(retry=2)
    assert (server.settings.heartbeat, server.settings.retry) == (3, 2)
    assert server.app is server.app
    with pytest.raises(RuntimeError, match="in use"):
        server.configure(retry=3)


@pytest.mark.parametrize("name", ["ctx", "stream"])
def test_a_parameter_that_lacks_the_annotation_of_the_server_is_logged(name, caplog):
    scope: dict[str, Any] = {}
    exec(f"def task({name}, n: int = 3): ...\ndef typed({name}: str): ...", scope)
    server = Server()
    server.endpoint(scope["typed"])
    assert caplog.records == []
    server.endpoint(scope["task"])
    (record,) = caplog.records
    assert f"endpoint 'task': the parameter {name} has no annotation" in record.getMessage()
