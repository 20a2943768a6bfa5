"""Signatures of batched functions: schema of one item, valid option combinations, and order of results."""

import typing
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import BaseModel, Field

from tidewire_server import Append, Context, ItemError, Last, Server, Stream
from tidewire_server.batching.batch_call import by_row
from tidewire_server.endpoints.batch_signature import batch_shapes_of
from tidewire_server.errors import InvalidValueError


class TrimWords(BaseModel):
    word: str
    length: int = Field(default=3, ge=1)


def returning(annotation: Any) -> Any:
    def f(words: list[str]): ...

    f.__annotations__["return"] = annotation
    return f


def yielding(annotation: Any) -> Any:
    def f(words: list[str]):
        yield {}

    f.__annotations__["return"] = annotation
    return f


def test_input_schema_of_a_list_of_models_is_the_model():
    def trim(inputs: list[TrimWords]) -> list[str]: ...

    schema = batch_shapes_of(trim, "trim").input.schema
    assert schema["required"] == ["word"]
    assert schema["additionalProperties"] is False


def test_input_schema_has_one_member_per_list_parameter():
    def trim(words: Sequence[str], lengths: list[Annotated[int, Field(ge=1)]], ctx: Context) -> list[str]: ...

    schema = batch_shapes_of(trim, "trim").input.schema
    assert schema["properties"]["words"]["type"] == "string"
    assert schema["properties"]["lengths"]["minimum"] == 1
    assert schema["required"] == ["words", "lengths"]


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (list[str], {"type": "string"}),
        (Sequence[str | ItemError], {"type": "string"}),
        (list[int | Exception | None], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (tuple[list[str]], {"type": "string"}),
        (list[list[float]], {"type": "array", "items": {"type": "number"}}),
        (Any, {}),
        (list, {}),
        (typing.List, {}),  # noqa: UP006
        (typing.Sequence, {}),
        (tuple[typing.List], {}),  # noqa: UP006
    ],
)
def test_value_schema_is_that_of_one_returned_element(annotation, schema):
    assert batch_shapes_of(returning(annotation), "f").value.schema == schema


@pytest.mark.parametrize("annotation", [tuple[list[str], list[int]], list[tuple[str, int]]])
def test_tuple_of_lists_and_list_of_tuples_have_the_same_schema(annotation):
    schema = batch_shapes_of(returning(annotation), "f").value.schema
    assert schema["prefixItems"] == [{"type": "string"}, {"type": "integer"}]


@pytest.mark.parametrize(
    ("annotation", "late_joiners"),
    [
        (Iterator[dict[int, str]], False),
        (Generator[dict[int, str | Append[str] | Last], None, None], False),
        (Generator[dict[int, Append[str] | Last[Append[str]] | ItemError], dict[int, str], None], True),
    ],
)
def test_value_schema_of_a_generator_is_that_of_one_row(annotation, late_joiners):
    shapes = batch_shapes_of(yielding(annotation), "f")
    assert shapes.value.schema == {"type": "string"}
    assert shapes.takes_late_joiners is late_joiners


@pytest.mark.parametrize(
    "annotation",
    [typing.Iterator, typing.AsyncIterator, typing.Generator, Iterator[typing.Dict]],  # noqa: UP006
)
def test_annotations_of_typing_without_arguments_allow_any_value(annotation):
    def spell(words: typing.List):  # noqa: UP006
        yield {}

    spell.__annotations__["return"] = annotation
    shapes = batch_shapes_of(spell, "spell")
    assert shapes.value.schema == {}
    assert shapes.input.schema["properties"] == {"words": {"title": "words"}}


def test_invalid_batch_signatures_are_refused():
    def one(word: str) -> list[str]: ...
    def default(words: list[str], lengths: list[int] = [3]) -> list[str]: ...  # noqa: B006
    def nothing() -> list[str]: ...
    def stream(words: list[str], stream: Stream[str]) -> None: ...
    async def lists(words: list[str]) -> AsyncIterator[list[str]]:
        yield []

    for function, message in [
        (one, r"the parameter 'word' of a batched function must be annotated list\[…\], not str"),
        (default, "the list parameter 'lengths' cannot have a default"),
        (nothing, "needs a parameter for the list of inputs"),
        (stream, r"Yield \{row: Append"),
        (lists, r"must yield \{row: value\}, annotated Iterator\[dict\[int, …\]\], not list\[str\]"),
        (returning(str), "the result of a batched function must be annotated"),
        (returning(dict[int, str]), "the result of a batched function must be annotated"),
    ]:
        with pytest.raises(TypeError, match=message):
            batch_shapes_of(function, "f")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be an integer from 1 to 65536, not 0"),
        ({"batch_timeout": -1}, "batch_timeout must be from 0 to 3600 seconds, not -1"),
        ({"sizes": [1, 8], "max_batch_size": 4}, r"the largest of sizes=\(1, 8\) must be max_batch_size=4"),
        ({"sizes": []}, "integers ≥ 1"),
        ({"pad": {"word": "x"}}, "pad requires sizes"),
        ({"sizes": [2], "pad": {}}, "pad is not a valid input: the member 'word' is missing"),
        ({"sizes": [2], "pad": {"wort": "x"}}, "pad is not a valid input: .*did you mean 'word'?"),
        ({"cost": len}, "cost requires max_cost"),
        ({"max_cost": 4}, "max_cost requires cost"),
        ({"cost": len, "max_cost": 0}, "a finite number greater than 0"),
        (
            {"batch": False, "key": len, "bisect": True},
            "key, bisect: these options require batch=True",
        ),
        ({"time_limit": 0}, "time_limit must be .*, not 0"),
        ({"concurrency_group": ""}, "concurrency_group must be .*, not ''"),
    ],
)
def test_invalid_option_combinations_are_refused_at_registration(options, message):
    def trim(inputs: list[TrimWords]) -> list[str]: ...

    with pytest.raises(ValueError, match=message):
        Server().endpoint(**({"batch": True} | options))(trim)


def test_generator_refuses_bisect_and_padding_for_late_joiners():
    with pytest.raises(ValueError, match="bisect cannot be used with a generator"):
        Server().endpoint(batch=True, bisect=True)(yielding(Iterator[dict[int, str]]))
    with pytest.raises(ValueError, match="Pad the batch in the function"):
        Server().endpoint(batch=True, sizes=[4])(yielding(Generator[dict[int, str], dict[int, str], None]))


def test_group_has_a_single_limit():
    server = Server(default_concurrency_limit=3)
    server.endpoint(name="a", concurrency_group="gpu")(lambda: 1)
    assert server.concurrency_limit_of("a") == 3
    server.endpoint(name="b", concurrency_group="gpu", concurrency_limit=2)(lambda: 1)
    assert server.concurrency_limit_of("a") == server.concurrency_limit_of("b") == 2
    with pytest.raises(
        ValueError, match="'gpu' has two different limits: 2 at endpoint 'b' and None at endpoint 'c'"
    ):
        server.endpoint(name="c", concurrency_group="gpu", concurrency_limit=None)(lambda: 1)
    assert sorted(server.endpoints) == ["a", "b"]


def test_results_are_assigned_in_the_order_of_the_inputs():
    assert by_row(["a", "b", "pad"], 2, 1, None) == ["a", "b"]
    assert by_row((["a", "b"], [1, 2]), 2, 0, 2) == [("a", 1), ("b", 2)]
    refused = ItemError("no")
    assert by_row((["a", refused], [1, 2]), 2, 0, 2) == [("a", 1), refused]


@pytest.mark.parametrize(
    ("returned", "columns", "message"),
    [
        (["a"], None, r"returned 1 values for 4 inputs \(1 of them padding\)"),
        ("abcd", None, "must return a list, not str"),
        ({0: 1, 1: 2, 2: 3, 3: 4}, None, "must return a list, not dict"),
        (None, None, "must return a list, not NoneType"),
        (np.array(5.0), None, "must return a list, not a scalar ndarray"),
        ((["a"] * 4, [1] * 3), 2, "returned 3 values in list 2 of 2 for 4 inputs"),
        ((["a"] * 4,), 2, "returned 1 lists, but its annotation declares 2"),
    ],
)
def test_wrong_number_of_results_is_reported_with_both_numbers(returned, columns, message):
    with pytest.raises(InvalidValueError, match=message):
        by_row(returned, 3, 1, columns)
