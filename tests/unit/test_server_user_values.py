"""What functions give, as JSON's own types: nothing is lost on the way without a word."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, field_serializer, model_serializer

from tidewire.protocol import strict_json
from tidewire_server.endpoints.signature_schemas import shapes_of
from tidewire_server.errors import InvalidValueError
from tidewire_server.log_writer.user_values import plain


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


WAYS = [plain, *(shapes_of(each, "e")[1].to_json for each in (anything, members, elements, model))]
DEEP = {
    "bare": lambda bad: bad,
    "member": lambda bad: {"a": bad},
    "model": lambda bad: Loose(y=bad),
    "model in an object": lambda bad: {"a": Loose(y=bad)},
    "model in a model": lambda bad: Loose(y=Loose(y=[bad])),
    "models in arrays": lambda bad: [[Loose(y={"k": bad})]],
    "dataclass in a model": lambda bad: {"a": [Loose(y=(Point(bad), 1))]},
    "model in a dataclass": lambda bad: [Point({"k": Loose(y=bad)})],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", DEEP)
def test_what_is_no_json_number_or_text_is_refused_alike_however_deep_it_stands(way, where):
    for bad, said in (
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (np.float32("nan"), "nan"),
        ("\ud800", "lone surrogate"),
    ):
        with pytest.raises(ValueError, match=said):
            strict_json.check(way(DEEP[where](bad)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", DEEP)
def test_two_members_of_one_name_are_refused_and_a_name_that_is_no_text_is_none(way, where):
    with pytest.raises(InvalidValueError, match="1 and '1' both become the JSON member '1'"):
        way(DEEP[where]({"o": {1: 2, "1": 3}}))
    with pytest.raises(ValueError, match="lone surrogate"):
        strict_json.check(way(DEEP[where]({"\ud800": 1})))
    assert way({"o": {1: 2, None: 3, "2": 4}}) == {"o": {"1": 2, "None": 3, "2": 4}}


@pytest.mark.parametrize("way", WAYS)
def test_arrays_and_what_a_model_says_of_itself_are_taken(way):
    given = {"s": Short(), "a": [Tidy(x=math.nan)], "b": Loose(x=1, y=np.array([1.5, 2])), "c": ({3}, None)}
    assert way(given) == {
        "s": {"y": 1},
        "a": [{"x": None}],
        "b": {"x": 1.0, "y": [1.5, 2.0]},
        "c": [[3], None],
    }
