"""What `import tidewire` gives, and how its things show themselves."""

import importlib.metadata

import pytest

import tidewire
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.types import ItemChange, ItemUpdate, Position, ResultType, Update


def test_errors_can_be_caught_without_another_import():
    with pytest.raises(tidewire.errors.ConnectTimeoutError) as caught:
        raise tidewire.errors.ConnectTimeoutError("no connection")
    assert isinstance(caught.value, tidewire.TidewireError)


def test_the_version_is_that_of_the_package():
    assert tidewire.__version__ == importlib.metadata.version("tidewire")
    assert {"__version__", "errors"} <= {*dir(tidewire)}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tidewire' has no attribute 'Klient'"):
        tidewire.Klient  # noqa: B018


@pytest.mark.parametrize(
    ("value", "told", "shown"),
    [
        ("Hello", {"text": "lo"}, "<Update 1-3 text='lo'>"),
        ("Hel", {"deleted": 2}, "<Update 1-3 deleted=2 text=''>"),
        (7, {}, "<Update 1-3 value=7>"),
        ([0] * 1000, {}, "<Update 1-3 value=[0, 0, 0, 0, 0, 0, ...]>"),
    ],
)
def test_an_update_shows_what_is_new_or_where_no_text_is_its_value(value, told, shown):
    document = Document({"items": [{"status": "running", "value": value}]})
    place = Position(document.view(), (), Cursor(1, 3))
    assert repr(Update(ItemChange(place, ResultType(None), 3, **told))) == shown
    of_item = ItemUpdate(ItemChange(place, ResultType(None), 3, index=0, **told))
    assert repr(of_item) == shown.replace("Update", "ItemUpdate").replace(">", " index=0>")
