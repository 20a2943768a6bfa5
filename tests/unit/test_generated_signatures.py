"""Generated signatures: blocking classes match their async classes, and each option is documented."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidewire import AsyncBatchJob, AsyncClient, AsyncJob, BatchJob, Client, Job
from tidewire_server import Server

SCRIPT = Path(__file__).parents[2] / "src/client/generate_signatures.py"
PAIRS = [(Client, AsyncClient), (Job, AsyncJob), (BatchJob, AsyncBatchJob)]


def public_functions(cls):
    members = inspect.getmembers(cls, inspect.isfunction)
    return {name: function for name, function in members if not name.startswith("_")}


def test_generated_signatures_are_up_to_date():
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=lambda cls: cls.__name__)
def test_blocking_class_has_the_parameters_and_docstrings_of_its_async_class(blocking, asynchronous):
    blocking_functions, async_functions = public_functions(blocking), public_functions(asynchronous)
    assert blocking_functions.keys() == {
        "close" if name == "aclose" else name for name in async_functions
    } - {"updates"}
    for name, function in blocking_functions.items():
        if name == "close":
            continue
        parameters = inspect.signature(function).parameters
        assert [*parameters] == [*inspect.signature(async_functions[name]).parameters], name
        assert inspect.getdoc(function), name


@pytest.mark.parametrize("cls", [Client, Job, BatchJob], ids=lambda cls: cls.__name__)
def test_docstrings_of_blocking_classes_are_whole(cls):
    for name, member in inspect.getmembers(
        cls, lambda each: inspect.isfunction(each) or isinstance(each, property)
    ):
        if name.startswith("_"):
            continue
        text = inspect.getdoc(member)
        assert "Async" not in text, name
        assert not re.match(r".*\bsee `", text.partition("\n\n")[0], re.IGNORECASE), name


@pytest.mark.parametrize(
    "function",
    [Client.__init__, Client.with_options, AsyncClient.__init__, AsyncClient.with_options, Server.endpoint]
    + [
        getattr(cls, name)
        for cls in (Client, AsyncClient)
        for name in ("submit", "run", "submit_batch", "map")
    ],
    ids=lambda function: function.__qualname__,
)
def test_each_option_is_a_documented_parameter(function):
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    assert "options" not in names
    for name in names:
        assert re.search(rf"^    {name}: \S", inspect.getdoc(function), re.MULTILINE), name
