"""Functions as people bring them from elsewhere: they work, or are refused with words that say what to write."""

import functools
import itertools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import pytest
from pydantic import Base64Bytes, BaseModel, Field

from tidewire_server import Context, ItemError, Server, Stream
from tidewire_server.errors import InvalidValueError, UnknownEndpointError

closed: list[str] = []


def letters() -> Iterator[str]:
    try:
        yield from itertools.accumulate("abc")
    finally:
        closed.append("letters")


async def letters_on_the_loop() -> AsyncIterator[str]:
    for text in itertools.accumulate("abc"):
        yield text


class Numbers:
    """An asynchronous iterator that is no generator, as the answers of many libraries are."""

    def __init__(self, last: int) -> None:
        self._left = list(range(1, last + 1))

    def __aiter__(self) -> "Numbers":
        return self

    async def __anext__(self) -> int:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


def returns_a_generator() -> Iterator[str]:
    """From elsewhere."""
    return letters()


def returns_a_generator_by_its_other_name() -> Generator[str, None, None]:
    return letters()


def returns_another_iterator() -> Iterator[str]:
    return itertools.accumulate("abc")


def returns_what_the_loop_drives() -> AsyncGenerator[str, None]:
    return letters_on_the_loop()


async def returns_what_the_loop_drives_late() -> AsyncIterator[str]:
    return letters_on_the_loop()


def returns_an_answer_of_a_library(n: int = 3) -> AsyncIterator[int]:
    return Numbers(n)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (returns_a_generator, "abc"),
        (returns_a_generator_by_its_other_name, "abc"),
        (returns_another_iterator, "abc"),
        (returns_what_the_loop_drives, "abc"),
        (returns_what_the_loop_drives_late, "abc"),
        (returns_an_answer_of_a_library, 3),
    ],
)
def test_a_function_that_returns_what_yields_is_as_one_that_yields(function, value):
    closed.clear()
    server = Server()
    server.endpoint(function)
    assert server.call(function.__name__) == value
    assert server.endpoints[function.__name__].streams
    assert server.endpoints[function.__name__].value.schema == {"type": "integer" if value == 3 else "string"}
    assert len(closed) == ("generator" in function.__name__)


def rows(n: list[int]) -> Iterator[dict[int, int]]:
    for step in range(1, max(n) + 1):
        yield {row: step for row, last in enumerate(n) if step <= last}


async def rows_on_the_loop(n: list[int]) -> AsyncIterator[dict[int, int]]:
    for step in rows(n):
        yield step


def returns_rows(n: list[int]) -> Iterator[dict[int, int]]:
    return rows(n)


async def returns_rows_late(n: list[int]) -> AsyncIterator[dict[int, int]]:
    return rows_on_the_loop(n)


@pytest.mark.parametrize("function", [returns_rows, returns_rows_late])
def test_a_batched_function_may_return_its_generator_too(function):
    server = Server()
    server.endpoint(batch=True)(function)
    assert server.call(function.__name__, n=3) == 3


def test_what_is_annotated_as_a_generator_of_rows_and_is_none_is_told():
    server = Server()

    @server.endpoint(batch=True)
    def lists(n: list[int]) -> Iterator[dict[int, int]]:
        return [{0: 1}]

    with pytest.raises(
        InvalidValueError, match="the function returned a list, but its annotation declares a generator"
    ):
        server.call("lists", n=1)


def returns_a_generator_and_does_not_say_so():
    return letters()


async def returns_one_of_the_loop_and_does_not_say_so():
    return letters_on_the_loop()


def forgot_to_be_async():
    async def inner() -> str:
        return "a"

    return inner()


def picture() -> bytes:
    return b"\x89PNG"


def not_a_number() -> list[float]:
    return np.array([1.0, np.nan])  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (returns_a_generator_and_does_not_say_so, "annotate it `-> Iterator[T]`"),
        (returns_one_of_the_loop_and_does_not_say_so, "annotate it `-> AsyncIterator[T]`"),
        (forgot_to_be_async, "declare the function `async def`, and await the coroutine"),
        (picture, "pydantic.Base64Bytes"),
        (not_a_number, "/1: nan"),
    ],
)
def test_what_a_function_gives_that_is_no_value_is_told_with_what_to_write(function, said):
    server = Server()
    server.endpoint(function)
    with pytest.raises(InvalidValueError, match=re.escape(said)):
        server.call(function.__name__)


def test_bytes_that_are_no_text_travel_as_base64():
    server = Server()

    @server.endpoint
    def picture(of: Base64Bytes = b"hi") -> Base64Bytes:
        return b"\x89" + of

    assert server.call("picture") == "iWhp"
    assert server.call("picture", of="aGk=") == "iWhp"


class Model:
    def predict(self, x: int = 1) -> int:
        return x


def double(x: int, times: int = 2) -> int:
    """Some number of times."""
    return times * x


def test_what_wraps_a_function_goes_by_its_name_and_its_words():
    server = Server()
    server.endpoint(functools.partial(double, times=3))
    server.endpoint(Model().predict)
    assert server.call("double", x=2) == 6
    assert server.call("predict", x=2) == 2
    assert server.endpoints["double"].summary == "Some number of times."


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Model, "Model is a class"),
        (Model.predict, "'predict' is an unbound method"),
        (lambda x=1: x, "a lambda has no name: pass one with name="),
        (functools.partial(lambda x=1: x), "a lambda has no name: pass one with name="),
    ],
)
def test_what_is_no_function_by_itself_is_refused_with_what_to_do(function, said):
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        Server().endpoint(function)


def test_a_function_may_say_that_it_runs_without_what_the_server_gives_it():
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


def gives_an_array() -> np.ndarray: ...
def takes_an_array(a: np.ndarray) -> int: ...


@pytest.mark.parametrize("function", [gives_an_array, takes_an_array])
def test_an_annotation_without_a_schema_is_told_in_one_line(function: Callable[..., Any]):
    with pytest.raises(TypeError) as refused:
        Server().endpoint(function)
    assert "numpy.ndarray" in str(refused.value)
    assert "use an annotation for its JSON form instead, such as list[float]" in str(refused.value)
    assert "arbitrary_types_allowed" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_generator_that_yields_nothing_says_so():
    server = Server()

    @server.endpoint
    def silent() -> Iterator[int]:
        yield from ()

    with pytest.raises(InvalidValueError, match="the function yielded nothing"):
        server.call("silent")


class TrimWords(BaseModel):
    word: str
    length: int = Field(default=3, ge=1)


def test_a_batched_function_stays_what_it_was_and_can_be_sampled():
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
