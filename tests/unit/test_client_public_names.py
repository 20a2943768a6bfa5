"""Public names of `tidewire`, and the `repr` of updates."""

import importlib.metadata

import pytest

import tidewire
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.result_type import ResultType
from tidewire.updates import ItemChange, ItemUpdate, Position, Update


def test_errors_are_available_as_an_attribute_of_the_package():
    with pytest.raises(tidewire.errors.ConnectTimeoutError) as caught:
        raise tidewire.errors.ConnectTimeoutError("no connection")
    assert isinstance(caught.value, tidewire.TidewireError)


def test_version_is_that_of_the_installed_distribution():
    assert tidewire.__version__ == importlib.metadata.version("tidewire")
    assert {"__version__", "errors"} <= {*dir(tidewire)}


def test_unknown_name_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tidewire' has no attribute 'Klient'"):
        tidewire.Klient  # noqa: B018


@pytest.mark.parametrize(
    ("value", "change", "shown"),
    [
        ("Hello", {"text": "lo"}, "<Update 1-3 text='lo'>"),
        ("Hel", {"deleted": 2}, "<Update 1-3 deleted=2 text=''>"),
        (7, {}, "<Update 1-3 value=7>"),
        ([0] * 1000, {}, "<Update 1-3 value=[0, 0, 0, 0, 0, 0, ...]>"),
    ],
)
def test_repr_of_an_update_shows_the_new_text_or_the_value(value, change, shown):
    document = Document({"items": [{"status": "running", "value": value}]})
    position = Position(document.view(), (), Cursor(1, 3))
    assert repr(Update(ItemChange(position, ResultType(None), 3, **change))) == shown
    of_item = ItemUpdate(ItemChange(position, ResultType(None), 3, index=0, **change))
    assert repr(of_item) == shown.replace("Update", "ItemUpdate").replace(">", " index=0>")
