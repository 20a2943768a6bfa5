import inspect
import re

import pytest
from typer.main import get_command

import tidewire
import tidewire.errors
import tidewire_server
from docs import reference
from tidewire_server.commands.serve_command import serve


@pytest.mark.parametrize("page", reference.PARTS)
def test_generated_parts_of_the_reference_are_up_to_date(page):
    written = (reference.REFERENCE / page).read_text()
    assert written == reference.with_parts(page), "run: python tests/docs/reference.py"


REFUSED = {"--max-event-bytes"}
"""Options in the documentation that are examples of errors."""


def test_options_of_serve_in_the_documentation_exist():
    known = {name for option in get_command(serve).params for name in option.opts + option.secondary_opts}
    commands = [
        command
        for page in reference.REFERENCE.parent.rglob("*.md")
        for command in re.findall(r"tidewire serve[^`\n]*", page.read_text(encoding="utf-8"))
    ]
    assert set(re.findall(r" (--[a-z-]+)", "\n".join(commands))) - known == REFUSED | {"--help"}


def test_every_error_is_in_the_documented_tree():
    tree = reference.errors()
    classes = [
        name
        for name, value in vars(tidewire.errors).items()
        if inspect.isclass(value) and issubclass(value, tidewire.errors.TidewireError)
    ]
    assert [name for name in classes if name not in tree] == []
    assert all(name.endswith("Error") for name in classes)


@pytest.mark.parametrize("package", [tidewire, tidewire_server])
def test_every_public_name_is_in_the_reference(package):
    pages = "".join(page.read_text() for page in reference.REFERENCE.glob("*.md"))
    assert [name for name in package.__all__ if name not in pages] == []


def test_every_flag_of_the_server_is_in_the_reference():
    page = (reference.REFERENCE / "server.md").read_text()
    flags = [(option.name, *option.opts) for option in get_command(serve).params]
    assert len(flags) > 20
    unknown = [names for names in flags if not any(f"`{name}" in page for name in (*names, names[0].upper()))]
    assert unknown == []
