"""Members of exported classes: exactly the members in the reference documentation."""

import dataclasses
import inspect
import re
from typing import Generic, NamedTuple, TypeVar

import pytest

import tidewire
import tidewire_server
from docs import reference
from tidewire import Checkpoint, Client, Hooks, MapProgress, RetryPolicy, TextDelta, TidewireError, Token
from tidewire.errors import NOWHERE
from tidewire.jobs.logprob_arrays import logprobs_of
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.result_type import ResultType
from tidewire.updates import ItemChange, ItemUpdate, Position, Update

T = TypeVar("T")


class OfGenerics(Generic[T]):
    """An empty generic class. Its members are those that Python adds to every generic class."""


@dataclasses.dataclass(frozen=True, slots=True)
class OfDataclasses:
    """An empty dataclass. Its members are those that Python adds to every dataclass."""


class OfNamedTuples(NamedTuple):
    """An empty named tuple. Its members are those that Python adds to every named tuple."""


def change():
    document = Document({"items": [{"status": "running", "value": "a"}]})
    return ItemChange(Position(document.view(), (), Cursor(1, 3)), ResultType(None), 3)


ANNOTATIONS = {"Binary", "ray_workers"}
"""Exported names that are not classes: types, whose bytes have no members of their own, and functions."""

INSTANCES = {
    "AsyncBatchJob": lambda: tidewire.AsyncClient("http://127.0.0.1:1").batch_job("j"),
    "AsyncClient": lambda: tidewire.AsyncClient("http://127.0.0.1:1"),
    "AsyncJob": lambda: tidewire.AsyncClient("http://127.0.0.1:1").job("j"),
    "AsyncMap": lambda: tidewire.AsyncClient("http://127.0.0.1:1").map("e", []),
    "BatchJob": lambda: Client("http://127.0.0.1:1").batch_job("j"),
    "Checkpoint": lambda: Checkpoint(job="j"),
    "Client": lambda: Client("http://127.0.0.1:1"),
    "Hooks": Hooks,
    "ItemUpdate": lambda: ItemUpdate(change()),
    "Job": lambda: Client("http://127.0.0.1:1").job("j"),
    "Logprobs": lambda: logprobs_of({"token_ids": [1]}, NOWHERE),
    "MapProgress": lambda: MapProgress(0, 0, 0, 0, None),
    "RetryPolicy": RetryPolicy,
    "TextDelta": lambda: TextDelta(0, "a"),
    "TidewireError": lambda: TidewireError("broken"),
    "Token": lambda: Token("a", 1),
    "Update": lambda: Update(change()),
    "Append": lambda: tidewire_server.Append("a"),
    "Context": tidewire_server.Context,
    "ItemError": lambda: tidewire_server.ItemError("no"),
    "Last": lambda: tidewire_server.Last("a"),
    "Server": tidewire_server.Server,
    "Stream": lambda: tidewire_server.Stream(None),
}


def members(instance):
    """Names in `dir()` of an instance, without members of built-in bases and members that Python adds."""
    cls = type(instance)
    left_out = {*dir(OfGenerics()), "__slots__", "__annotations__", "__classdictcell__", "__post_init__"}
    for base in cls.__mro__:
        if not base.__module__.startswith("tidewire"):
            left_out.update(dir(base))
    if dataclasses.is_dataclass(cls):
        left_out.update(dir(OfDataclasses()))
    if issubclass(cls, tuple):
        left_out.update(dir(OfNamedTuples()))
    return {*dir(instance)} - left_out


def documented_members():
    """Map each class to its members, read from the tables of the reference."""
    table = ""
    for page in ("client.md", "server.md"):
        text = (reference.REFERENCE / page).read_text()
        table += text.partition("\n## Members of the classes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|$", table, re.MULTILINE)
    return {name: {*re.findall(r"`(\w+)`", f"{public} {private}")} for name, public, private in rows}


@pytest.mark.parametrize(
    "name", [name for name in [*tidewire.__all__, *tidewire_server.__all__] if name not in ANNOTATIONS]
)
def test_instance_has_exactly_the_documented_members(name):
    assert members(INSTANCES[name]()) == documented_members()[name]


@pytest.mark.parametrize("name", sorted({*tidewire.__all__} - ANNOTATIONS))
def test_instance_has_at_most_one_private_member(name):
    shown = members(INSTANCES[name]()) - {"_ipython_display_"}  # IPython defines this name
    assert len([member for member in shown if re.match(r"_(?!_)", member)]) <= 1


@pytest.mark.parametrize("cls", [tidewire.AsyncClient, Client])
def test_client_has_no_private_argument(cls):
    assert not [name for name in inspect.signature(cls).parameters if name.startswith("_")]
