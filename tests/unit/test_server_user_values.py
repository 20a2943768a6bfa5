"""Conversion of values from user functions to JSON types, without silent loss."""

import dataclasses
import math
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, field_serializer, model_serializer

from tidewire.protocol import strict_json
from tidewire_server.endpoints.signature_schemas import shapes_of
from tidewire_server.endpoints.user_values import plain
from tidewire_server.errors import InvalidValueError


class Loose(BaseModel):
    x: float = 0
    y: Any = None


@dataclasses.dataclass
class Point:
    x: Any


class Tidy(BaseModel):
    x: float

    @field_serializer("x")
    def without_nan(self, x: float) -> float | None:
        return None if math.isnan(x) else x


class Short(BaseModel):
    x: float = math.nan
    y: int = 1

    @model_serializer(when_used="json")
    def only_y(self) -> dict[str, int]:
        return {"y": self.y}


def anything() -> Any: ...
def members() -> dict[str, Any]: ...
def elements() -> list[Any]: ...
def model() -> Loose: ...


CONVERSIONS = [plain, *(shapes_of(each, "e").value.to_json for each in (anything, members, elements, model))]
NESTINGS = {
    "bare": lambda bad: bad,
    "member": lambda bad: {"a": bad},
    "model": lambda bad: Loose(y=bad),
    "model in an object": lambda bad: {"a": Loose(y=bad)},
    "model in a model": lambda bad: Loose(y=Loose(y=[bad])),
    "models in arrays": lambda bad: [[Loose(y={"k": bad})]],
    "dataclass in a model": lambda bad: {"a": [Loose(y=(Point(bad), 1))]},
    "model in a dataclass": lambda bad: [Point({"k": Loose(y=bad)})],
}


@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_values_outside_json_are_refused_at_any_depth(convert, nesting):
    for bad, message in (
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (np.float32("nan"), "nan"),
        ("\ud800", "lone surrogate"),
    ):
        with pytest.raises(ValueError, match=message):
            strict_json.check(convert(NESTINGS[nesting](bad)))


class NaT(datetime):
    """A missing date, whose members are NaN, as in pandas."""

    year = float("nan")


class SparseTensor:
    """A tensor that has no list of its elements, as a sparse tensor of PyTorch."""

    def tolist(self):
        raise RuntimeError("no data pointer")


@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize("nesting", sorted(NESTINGS.keys() - {"bare"}))
@pytest.mark.parametrize(
    ("bad", "message"),
    [(NaT(2026, 1, 1), "not JSON: 'float' object"), (SparseTensor(), "not JSON: no data pointer")],
    ids=["NaT", "sparse tensor"],
)
def test_an_error_of_the_conversion_is_a_fault_of_the_value(convert, nesting, bad, message):
    with pytest.raises(InvalidValueError, match=message):
        convert(NESTINGS[nesting](bad))


@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_duplicate_and_non_string_member_names_are_handled_at_any_depth(convert, nesting):
    with pytest.raises(InvalidValueError, match="1 and '1' both become the JSON member '1'"):
        convert(NESTINGS[nesting]({"o": {1: 2, "1": 3}}))
    with pytest.raises(ValueError, match="lone surrogate"):
        strict_json.check(convert(NESTINGS[nesting]({"\ud800": 1})))
    assert convert({"o": {1: 2, None: 3, "2": 4}}) == {"o": {"1": 2, "None": 3, "2": 4}}


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_arrays_and_custom_serializers_of_models_are_supported(convert):
    given = {"s": Short(), "a": [Tidy(x=math.nan)], "b": Loose(x=1, y=np.array([1.5, 2])), "c": ({3}, None)}
    assert convert(given) == {
        "s": {"y": 1},
        "a": [{"x": None}],
        "b": {"x": 1.0, "y": [1.5, 2.0]},
        "c": [[3], None],
    }
