"""Declared dependencies: the packages of the base install and of each extra match the imports of the code."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

import tidewire

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NAME = re.compile(r"^([\w.-]+)(?:\[([\w,-]+)\])?(.*)$")


def parsed(requirements):
    """Return name, extras and version of each requirement."""
    return [NAME.match(each).groups() for each in requirements]


def names(requirements, *seen):
    """Names of the required distributions, after expanding the project's own extras."""
    found = set()
    for name, extras, _ in parsed(requirements):
        if name != "tidewire":
            found.add(name.lower())
            continue
        for extra in (extras or "").split(","):
            assert extra not in seen, f"extra {extra} includes itself"
            found |= names(EXTRAS[extra], *seen, extra)
    return found


def third_party(path):
    """Yield the third-party top-level modules that a file imports at module level."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        wanted = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            wanted = [node.module]
        for module in (each.partition(".")[0] for each in wanted):
            if module not in sys.stdlib_module_names and not module.startswith("tidewire"):
                yield module


@pytest.mark.heavy
def test_base_install_has_exactly_what_importing_tidewire_needs():
    base = {"anyio", "h11", "httpcore2", "httpx2", "msgspec", "pydantic", "rfc8785"}
    assert names(PROJECT["dependencies"]) == base
    imported = {
        module for path in Path(tidewire.__file__).parent.rglob("*.py") for module in third_party(path)
    }
    of_extras = {"typer", "rich", "numpy", "datamodel_code_generator", "pytest"}
    installed_with = {"pydantic_core": "pydantic", "typing_extensions": "pydantic"}
    assert {installed_with.get(module, module) for module in imported - of_extras} == base


@pytest.mark.parametrize(
    ("extra", "brings"),
    [
        ("cli", {"rich", "typer"}),
        (
            "server",
            {
                "httptools",
                "orjson",
                "prometheus-client",
                "pydantic-settings",
                "starlette",
                "uvicorn",
                "uvloop",
                "watchfiles",
                "rich",
                "typer",
            },
        ),
        ("conformance", {"jsonschema", "rich", "typer"}),
        ("codegen", {"datamodel-code-generator", "rich", "typer"}),
        ("otel", {"opentelemetry-api"}),
    ],
)
def test_extra_installs_everything_that_its_commands_need(extra, brings):
    assert names(EXTRAS[extra], extra) == brings


def test_dev_extra_has_everything_for_tests_except_the_engine():
    needed = {"jsonschema", "typer", "rich", "uvicorn", "datamodel-code-generator", "pytest", "mypy", "ruff"}
    assert needed <= names(EXTRAS["dev"])
    assert "torch" not in names(EXTRAS["dev"])
    assert "torch" in names(EXTRAS["engine"])


def test_uvicorn_has_an_upper_bound_above_the_pinned_version():
    [(_, extras, bounds)] = [each for each in parsed(EXTRAS["server"]) if each[0] == "uvicorn"]
    assert extras is None, "uvicorn[standard] installs packages that the server does not use"
    lower, upper = re.fullmatch(r">=([\d.]+),<([\d.]+)", bounds).groups()
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    pinned = re.search(r"^uvicorn==([\d.]+)$", pins, re.MULTILINE)[1]
    low, tested, high = ([int(part) for part in each.split(".")] for each in (lower, pinned, upper))
    assert low <= tested < high
    assert high[:2] == [tested[0], tested[1] + 1], (
        "the upper bound must be the minor version after the tested version"
    )


@pytest.mark.parametrize("name", ["h11", "httpcore2", "httpx2"])
def test_libraries_whose_private_members_are_used_have_an_upper_bound(name):
    [(_, _, bounds)] = [each for each in parsed(PROJECT["dependencies"]) if each[0] == name]
    assert re.fullmatch(r">=[\d.]+,<[\d.]+", bounds)


def test_installed_metadata_matches_the_declared_dependencies():
    installed = {}
    for requirement in importlib.metadata.requires("tidewire"):
        wanted, _, condition = requirement.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", condition)
        installed.setdefault(extra and extra[1], set()).add(NAME.match(wanted.strip())[1].lower())
    declared = {None: names(PROJECT["dependencies"])} | {each: names(EXTRAS[each], each) for each in EXTRAS}
    # A build either expands an extra that includes extras of this project, or keeps their names.
    for extra, wanted in installed.items():
        if "tidewire" not in wanted:
            assert wanted == declared[extra], (
                "the installed package is older than pyproject.toml; install the package again"
            )
    assert set(installed) == set(declared)
    scripts = importlib.metadata.entry_points(group="console_scripts", name="tidewire")
    assert (
        {script.value for script in scripts} == {"tidewire.__main__:main"} == set(PROJECT["scripts"].values())
    )
