"""Faulty servers change existing names of the server. A renamed name would make a fault ineffective or fail its import."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import proof.servers.faults as package


def modules() -> Iterator[ModuleType]:
    for path in sorted(Path(inspect.getfile(package)).parent.glob("[a-z]*.py")):
        yield importlib.import_module(f"{package.__name__}.{path.stem}")


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Any]]:
    """Yield the names that an import binds, and their objects."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.asname or alias.name, importlib.import_module(alias.name)
            continue
        assert node.module is not None
        module = importlib.import_module(node.module)
        if not hasattr(module, alias.name):
            importlib.import_module(f"{node.module}.{alias.name}")
        yield alias.asname or alias.name, getattr(module, alias.name)


@pytest.mark.parametrize("module", [*modules()], ids=lambda module: module.__name__.rpartition(".")[2])
def test_faults_use_names_that_exist(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    names = {
        name: found
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name, found in imported(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            owner = names[node.value.id]
            if isinstance(owner, ModuleType | type):
                assert hasattr(owner, node.attr), f"line {node.lineno}: {node.value.id} has no {node.attr}"
