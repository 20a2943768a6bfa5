"""Values whose JSON, as pydantic serializes it, is not the JSON that pydantic validates."""

from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    computed_field,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from tidewire_server.endpoints.endpoint import Endpoint, Options
from tidewire_server.endpoints.signature_schemas import ValueShape
from tidewire_server.errors import InvalidValueError

JANUARY = datetime(2020, 1, 2)  # noqa: DTZ001 - the time zone does not matter


class Event(BaseModel):
    at: datetime | None = None

    @field_serializer("at", when_used="json-unless-none")
    def _german(self, at: datetime) -> str:
        return at.strftime("%d.%m.%Y")

    @field_validator("at")
    @classmethod
    def _recent(cls, at: datetime) -> datetime:
        assert at.year > 2000
        return at


class User(BaseModel):
    name: str
    password: str = Field(exclude=True)

    @model_validator(mode="after")
    def _long(self) -> "User":
        assert len(self.password) > 1
        return self


class Row(BaseModel):
    count: int = Field(serialization_alias="Count")


class Box(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int = 2

    @computed_field
    def area(self) -> int:
        return self.width**2


class Tree(BaseModel):
    box: Box = Box()
    children: list["Tree"] = []


class Words(BaseModel):
    """Members with names that pydantic's own schemas use."""

    type: int = 1
    config: Box = Box()
    serialization: str = "a"


class Named(TypedDict, total=False):
    event: Event


class Opened(BaseModel):
    kind: Literal["opened"] = Field("opened", serialization_alias="Kind")


class Closed(BaseModel):
    kind: Literal["closed"] = Field("closed", serialization_alias="Kind")


class Change(BaseModel):
    door: Annotated[Opened | Closed, Field(discriminator="kind")]


@dataclass
class Stamped:
    event: Event

    @computed_field
    def size(self) -> int:
        return 1


def shape(annotation: Any) -> ValueShape:
    def function(): ...

    function.__annotations__["return"] = annotation
    return Endpoint(function, Options()).value


@pytest.mark.parametrize(
    ("annotation", "value", "made", "wrong", "message"),
    [
        (Event, Event(at=JANUARY), {"at": "02.01.2020"}, {"at": 5}, "/at: Input should be a valid string"),
        (Event, Event(), {"at": None}, [], "the value: Input should be an object"),
        (User, User(name="a", password="bc"), {"name": "a"}, {"password": "bc"}, "/name: Field required"),
        (Row, Row(count=1), {"Count": 1}, {"count": 1}, "/Count: Field required"),
        (Box, Box(), {"width": 2, "area": 4}, {"width": 2, "area": 4, "z": 1}, "/z: Extra inputs"),
        (list[Box], [Box()], [{"width": 2, "area": 4}], [{"width": 2}], "/0/area: Field required"),
        (
            Tree,
            Tree(children=[Tree()]),
            {
                "box": {"width": 2, "area": 4},
                "children": [{"box": {"width": 2, "area": 4}, "children": []}],
            },
            {"box": {"width": 2}},
            "/box/area: Field required",
        ),
        (
            Words,
            Words(),
            {"type": 1, "config": {"width": 2, "area": 4}, "serialization": "a"},
            {"config": {}},
            "/config/area: Field required",
        ),
        (Named, {"event": Event(at=JANUARY)}, {"event": {"at": "02.01.2020"}}, {"event": 1}, "/event: Input"),
        (Stamped, Stamped(Event()), {"event": {"at": None}, "size": 1}, Event(), "/event: Field required"),
        (
            Change,
            Change(door=Closed()),
            {"door": {"Kind": "closed"}},
            {"door": {"Kind": "ajar"}},
            "/door.*: Input should be .opened.",
        ),
        (
            list[Annotated[int, PlainSerializer(str, return_type=str)]],
            [5],
            ["5"],
            5,
            "the value: Input should",
        ),
    ],
)
def test_json_that_matches_the_published_schema_is_accepted(annotation, value, made, wrong, message):
    found = shape(annotation)
    assert found.to_json(value) == made
    found.check(made)
    with pytest.raises(InvalidValueError, match=message):
        found.check(found.to_json(wrong))
