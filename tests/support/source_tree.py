"""The modules in `src/` and the syntax trees of their code."""

import ast
from functools import cache
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
PACKAGES = {
    "tidewire": SRC / "client/tidewire",
    "tidewire_server": SRC / "reference_server/tidewire_server",
    "tidewire_conformance": SRC / "conformance/tidewire_conformance",
}


@cache
def modules(package: str) -> dict[str, Path]:
    """Map the dotted names of a package's modules to their files; a folder has its own name."""
    root = PACKAGES[package]
    found = {}
    for path in sorted(root.rglob("*.py")):
        inside = [part for part in path.relative_to(root).with_suffix("").parts if part != "__init__"]
        found[".".join((package, *inside))] = path
    return found


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a module's syntax tree. The first one is the module."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
