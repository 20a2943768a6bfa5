"""Forms of endpoint functions: iterators, partials, methods, optional contexts.

Unsupported forms raise with advice.
"""

import asyncio
import functools
import itertools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import pytest
from pydantic import Base64Bytes, BaseModel, Field
from typing_extensions import TypeAliasType

from tidewire_server import Append, Context, ItemError, Server, Stream
from tidewire_server.errors import InvalidValueError, UnknownEndpointError

closed_generators: list[str] = []


def letters() -> Iterator[str]:
    try:
        yield from itertools.accumulate("abc")
    finally:
        closed_generators.append("letters")


async def letters_on_the_loop() -> AsyncIterator[str]:
    for text in itertools.accumulate("abc"):
        yield text


class Numbers:
    """An asynchronous iterator that is not a generator, as many libraries return it."""

    def __init__(self, last: int) -> None:
        self._left = list(range(1, last + 1))

    def __aiter__(self) -> "Numbers":
        return self

    async def __anext__(self) -> int:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


def returns_a_generator() -> Iterator[str]:
    """A function that returns a generator of another function."""
    return letters()


def returns_a_generator_annotated_as_generator() -> Generator[str, None, None]:
    return letters()


def returns_another_iterator() -> Iterator[str]:
    return itertools.accumulate("abc")


def returns_async_letters() -> AsyncGenerator[str, None]:
    return letters_on_the_loop()


async def returns_async_letters_after_await() -> AsyncIterator[str]:
    return letters_on_the_loop()


def returns_an_async_iterator(n: int = 3) -> AsyncIterator[int]:
    return Numbers(n)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (returns_a_generator, "abc"),
        (returns_a_generator_annotated_as_generator, "abc"),
        (returns_another_iterator, "abc"),
        (returns_async_letters, "abc"),
        (returns_async_letters_after_await, "abc"),
        (returns_an_async_iterator, 3),
    ],
)
def test_a_function_that_returns_an_iterator_streams_like_a_generator(function, value):
    closed_generators.clear()
    server = Server()
    server.endpoint(function)
    assert server.call(function.__name__) == value
    assert server.endpoints[function.__name__].streams
    assert server.endpoints[function.__name__].value.schema == {"type": "integer" if value == 3 else "string"}
    assert len(closed_generators) == ("generator" in function.__name__)


def rows(n: list[int]) -> Iterator[dict[int, int]]:
    for step in range(1, max(n) + 1):
        yield {row: step for row, last in enumerate(n) if step <= last}


async def rows_on_the_loop(n: list[int]) -> AsyncIterator[dict[int, int]]:
    for step in rows(n):
        yield step


def returns_rows(n: list[int]) -> Iterator[dict[int, int]]:
    return rows(n)


async def returns_rows_after_await(n: list[int]) -> AsyncIterator[dict[int, int]]:
    return rows_on_the_loop(n)


@pytest.mark.parametrize("function", [returns_rows, returns_rows_after_await])
def test_a_batched_function_may_return_a_generator(function):
    server = Server()
    server.endpoint(batch=True)(function)
    assert server.call(function.__name__, n=3) == 3


def test_a_batched_function_that_returns_a_list_instead_of_a_generator_raises():
    server = Server()

    @server.endpoint(batch=True)
    def lists(n: list[int]) -> Iterator[dict[int, int]]:
        return [{0: 1}]

    with pytest.raises(
        InvalidValueError, match="the function returned a list, but its annotation declares a generator"
    ):
        server.call("lists", n=1)


def returns_a_generator_without_annotation():
    return letters()


async def returns_an_async_generator_without_annotation():
    return letters_on_the_loop()


def returns_a_coroutine():
    async def inner() -> str:
        return "a"

    return inner()


def picture() -> bytes:
    return b"\x89PNG"


def not_a_number() -> list[float]:
    return np.array([1.0, np.nan])  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (returns_a_generator_without_annotation, "annotate it `-> Iterator[T]`"),
        (returns_an_async_generator_without_annotation, "annotate it `-> AsyncIterator[T]`"),
        (returns_a_coroutine, "declare the function `async def`, and await the coroutine"),
        (picture, "tidewire_server.Binary"),
        (not_a_number, "/1: nan"),
    ],
)
def test_a_returned_object_that_is_not_a_value_raises_with_advice(function, message):
    server = Server()
    server.endpoint(function)
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        server.call(function.__name__)


def test_bytes_are_sent_as_base64():
    server = Server()

    @server.endpoint
    def picture(of: Base64Bytes = b"hi") -> Base64Bytes:
        return b"\x89" + of

    assert server.call("picture") == "iWhp"
    assert server.call("picture", of="aGk=") == "iWhp"


def double(x: int, times: int = 2) -> int:
    """Some number of times."""
    return times * x


def in_a_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(**members: Any) -> Any:
        return await asyncio.to_thread(function, **members)

    return wrapper


def as_a_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(**members: Any) -> Iterator[Any]:
        yield function(**members)

    return wrapper


def in_small_steps(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(**members: Any) -> AsyncIterator[Any]:
        for each in function(**members):
            yield each

    return wrapper


def unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(**members: Any) -> Any:
        return function(**members)

    return wrapper


class Blocking:
    """A decorator such as asgiref's `async_to_sync`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, **members: Any) -> Any:
        return asyncio.run(self.__wrapped__(**members))  # type: ignore[attr-defined]


async def double_on_the_loop(x: int, times: int = 2) -> int:
    return times * x


@pytest.mark.parametrize(
    ("decorator", "function", "members", "value"),
    [
        (in_a_thread, double, {"x": 3}, 6),
        (as_a_generator, double, {"x": 3}, 6),
        (in_small_steps, letters, {}, "abc"),
        (unchanged, double, {"x": 3}, 6),
        (unchanged, letters, {}, "abc"),
        (unchanged, double_on_the_loop, {"x": 3}, 6),
        (unchanged, letters_on_the_loop, {}, "abc"),
        (Blocking, double_on_the_loop, {"x": 3}, 6),
    ],
)
def test_a_decorator_may_change_how_its_function_is_called(decorator, function, members, value):
    server = Server()
    server.endpoint(name="f")(decorator(function))
    assert server.call("f", **members) == value


class Model:
    def predict(self, x: int = 1) -> int:
        return x


def test_partials_and_methods_keep_the_name_and_docstring_of_the_function():
    server = Server()
    server.endpoint(functools.partial(double, times=3))
    server.endpoint(Model().predict)
    assert server.call("double", x=2) == 6
    assert server.call("predict", x=2) == 2
    assert server.endpoints["double"].summary == "Some number of times."


def decorated_without_wraps(*members: Any, **others: Any) -> Any:
    return double(*members, **others)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            decorated_without_wraps,
            "if a decorator has made this function, use functools.wraps in the decorator",
        ),
        (Model, "Model is a class"),
        (Model.predict, "'predict' is an unbound method"),
        (lambda x=1: x, "a lambda has no name: pass one with name="),
        (functools.partial(lambda x=1: x), "a lambda has no name: pass one with name="),
    ],
)
def test_classes_unbound_methods_and_lambdas_raise_with_advice(function, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        Server().endpoint(function)


def test_context_and_stream_parameters_may_be_optional():
    server = Server()

    @server.endpoint
    def step(n: int = 1, ctx: Context | None = None) -> int:
        return 2 * n if ctx is None else n

    @server.endpoint
    def spell(word: str, stream: Optional[Stream[str]] = None) -> str | None:  # noqa: UP045
        return word if stream is None else stream.append(word)

    assert (step(), spell("a")) == (2, "a")
    assert (server.call("step"), server.call("spell", word="b")) == (1, "b")
    assert list(server.endpoints["step"].input.schema["properties"]) == ["n"]


Words = TypeAliasType("Words", Iterator[Append[str]])
Word = TypeAliasType("Word", str)
Sink = TypeAliasType("Sink", Stream[Word])
MaybeContext = TypeAliasType("MaybeContext", Context | None)


def yields_an_alias() -> Words:
    yield Append("word")


def yields_texts_of_an_alias() -> Iterator[Word]:
    yield "word"


def returns_an_alias(ctx: MaybeContext = None) -> Words:
    assert ctx is not None
    return yields_an_alias()


def writes_to_an_alias(stream: Sink) -> None:
    stream.append("word")


def writes_to_an_optional_alias(ctx: MaybeContext | None = None, stream: Sink | None = None) -> None:
    assert ctx is not None
    assert stream is not None
    stream.append("word")


@pytest.mark.parametrize(
    "function",
    [
        yields_an_alias,
        yields_texts_of_an_alias,
        returns_an_alias,
        writes_to_an_alias,
        writes_to_an_optional_alias,
    ],
)
def test_annotations_may_be_type_aliases(function):
    server = Server()
    server.endpoint(function)
    assert server.endpoints[function.__name__].value.is_text
    assert server.call(function.__name__) == "word"


def gives_an_array() -> np.ndarray: ...
def takes_an_array(a: np.ndarray) -> int: ...


@pytest.mark.parametrize("function", [gives_an_array, takes_an_array])
def test_an_annotation_without_a_schema_raises_one_line(function: Callable[..., Any]):
    with pytest.raises(TypeError) as refused:
        Server().endpoint(function)
    assert "numpy.ndarray" in str(refused.value)
    assert "use an annotation for its JSON form instead, such as list[float]" in str(refused.value)
    assert "arbitrary_types_allowed" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_generator_that_yields_nothing_raises():
    server = Server()

    @server.endpoint
    def silent() -> Iterator[int]:
        yield from ()

    with pytest.raises(InvalidValueError, match="the function yielded nothing"):
        server.call("silent")


class TrimWords(BaseModel):
    word: str
    length: int = Field(default=3, ge=1)


def test_a_batched_function_stays_callable_directly_and_with_server_call():
    server = Server()

    @server.endpoint(batch=True, max_batch_size=16, batch_timeout=0.005)
    def trim_words(inputs: list[TrimWords]) -> Sequence[str | ItemError]:
        return [each.word[: each.length] or ItemError("no word", code="input_too_long") for each in inputs]

    assert trim_words([TrimWords(word="hello"), TrimWords(word="sea", length=1)]) == ["hel", "s"]
    assert server.call("trim_words", word="hello", length=2) == "he"
    with pytest.raises(ItemError, match="no word"):
        server.call("trim_words", word="")
    with pytest.raises(UnknownEndpointError) as error:
        server.call("trim", word="")
    assert str(error.value) == "endpoint 'trim' does not exist; this server has: trim_words"
