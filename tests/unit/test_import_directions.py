"""Who may import whom: by the code, and by what a fresh interpreter has loaded."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tidewire

ROOTS = {
    "tidewire": Path(tidewire.__file__).parent,
    "tidewire_server": Path("src/reference_server/tidewire_server"),
    "tidewire_conformance": Path("src/conformance/tidewire_conformance"),
}
REPOSITORY = Path(tidewire.__file__).parents[3]


def modules(package):
    root = ROOTS[package] if ROOTS[package].is_absolute() else REPOSITORY / ROOTS[package]
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).with_suffix("").parts
        yield ".".join((package, *(part for part in inside if part != "__init__"))), path


def imports(path, *, at_top=False):
    """Modules that a file imports, those for type checkers left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(id(below) for child in node.body for below in ast.walk(child))
    nodes = tree.body if at_top else ast.walk(tree)
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offenders(package, forbidden, *, unless=lambda _: False):
    return [
        f"{name} imports {wanted}"
        for name, path in modules(package)
        if not unless(name)
        for wanted in imports(path)
        if any(wanted == one or wanted.startswith(one + ".") for one in forbidden)
    ]


SHELL = [
    name for name, _ in modules("tidewire") if name != "tidewire" and not name.startswith("tidewire.protocol")
]


def test_the_core_imports_the_standard_library_and_pydantic_only():
    allowed = sys.stdlib_module_names | {"pydantic", "pydantic_core"}
    outside = {
        (name, wanted)
        for name, path in modules("tidewire")
        if name.startswith("tidewire.protocol")
        for wanted in imports(path)
        if wanted.partition(".")[0] not in allowed and not wanted.startswith("tidewire.protocol")
    }
    # RFC 8785 is a library's business, loaded when a digest is made.
    assert {wanted.partition(".")[0] for _, wanted in outside} <= {"rfc8785"}
    for name, path in modules("tidewire"):
        if name.startswith("tidewire.protocol"):
            assert not any(wanted.startswith("rfc8785") for wanted in imports(path, at_top=True)), name


def test_the_core_does_no_io_keeps_no_clock_and_logs_nothing():
    assert offenders("tidewire", ["asyncio", "threading", "socket", "time", "logging", "os", "anyio"],
                     unless=lambda name: not name.startswith("tidewire.protocol")) == []  # fmt: skip


def test_the_client_imports_neither_server_nor_suite():
    assert offenders("tidewire", ["tidewire_server", "tidewire_conformance"]) == []


def test_only_the_transport_imports_the_http_library():
    # What users test with stands in for the network, below the transport: it has to be one of the library's transports.
    may = {
        "tidewire.http.transport",
        "tidewire.http.fast_body_reader",
        "tidewire.http.httpx_fixes",
        "tidewire.testing.fake_transport",
    }
    http = ["httpx", "httpx_sse", "httpcore", "h11"]
    assert offenders("tidewire", http, unless=lambda name: name in may) == []


def test_the_client_does_not_need_what_its_users_test_with():
    def of_tests(name):
        return name == "tidewire.testing" or name.startswith("tidewire.testing.")

    assert offenders("tidewire", ["tidewire.testing"], unless=of_tests) == []
    assert (
        offenders("tidewire", ["pytest"], unless=lambda name: name == "tidewire.testing.pytest_plugin") == []
    )


def test_the_server_never_imports_the_clients_shell():
    # A name of the package itself, such as tidewire.Client, would be one too.
    def shell(wanted):
        return wanted == "tidewire" or any(wanted == one or wanted.startswith(one + ".") for one in SHELL)

    found = [
        f"{name} imports {wanted}"
        for name, path in modules("tidewire_server")
        for wanted in imports(path)
        if shell(wanted)
    ]
    assert found == []


def test_the_suite_imports_neither_client_nor_server():
    assert offenders("tidewire_conformance", ["tidewire", "tidewire_server"]) == []


def test_only_the_torch_engine_and_the_models_recipe_import_torch():
    def may(name):
        return name.startswith(("tidewire_server.generation.torch_engine", "tidewire_server.model"))

    heavy = ["torch", "transformers", "tokenizers", "safetensors"]
    assert offenders("tidewire_server", heavy, unless=may) == []
    assert offenders("tidewire", heavy) == []
    assert offenders("tidewire_conformance", heavy) == []


def loaded_after(code):
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(ended.stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import tidewire", ["httpx", "anyio", "pydantic", "asyncio", "typer", "rich"]),
        (
            "import tidewire.protocol.follower",
            ["httpx", "httpx_sse", "anyio", "asyncio", "rfc8785", "typer", "rich"],
        ),
        ("import tidewire; dir(tidewire); tidewire.__all__", ["httpx"]),
        (
            "from tidewire import AsyncClient",
            ["tidewire.sync", "trio", "typer", "jsonschema", "numpy", "tidewire.testing", "tidewire_server"],
        ),
        (
            "from tidewire import Client",
            ["trio", "typer", "jsonschema", "tidewire_server", "tidewire.commands.cli"],
        ),
        ("import tidewire.testing", ["pytest", "tidewire_server", "typer"]),
        ("from tidewire import Checkpoint, RetryPolicy, Update, TextDelta", ["httpx", "anyio"]),
        ("import tidewire.commands.cli", ["tidewire_server", "tidewire_conformance", "torch", "starlette"]),
    ],
)
def test_a_fresh_interpreter_has_loaded_no_more_than_is_needed(code, absent):
    assert loaded_after(code).isdisjoint(absent)


def test_every_public_name_is_there_and_dir_tells_it():
    for name in tidewire.__all__:
        assert getattr(tidewire, name).__name__ == name
    assert set(tidewire.__all__) <= set(dir(tidewire))
    assert tidewire.__all__ == sorted(tidewire.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = tidewire.Nothing
