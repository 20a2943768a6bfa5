"""Import rules between packages, checked in the source and in a fresh interpreter."""

import ast
import functools
import subprocess
import sys

import pytest

import tidewire
from support.source_tree import PACKAGES, modules, nodes


@functools.cache
def imports(path, *, at_top=False):
    """Return the modules that a file imports, except imports for type checkers."""
    every = nodes(path)
    skipped = set()
    for node in every:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(id(below) for child in node.body for below in ast.walk(child))
    found = []
    for node in every[0].body if at_top else every:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def offenders(package, forbidden, *, unless=lambda _: False):
    return [
        f"{name} imports {wanted}"
        for name, path in modules(package).items()
        if not unless(name)
        for wanted in imports(path)
        if any(wanted == one or wanted.startswith(one + ".") for one in forbidden)
    ]


FOR_MESSAGES = ("tidewire.install_command", "tidewire.inputs.input_words", "tidewire.terminal.status_area")
"""Modules of the client that the server may import: for the message about a package that is missing, for the arguments of
the commands that the server's banner shows, and for the status line below its log.
"""

PURE = ("tidewire.protocol", "tidewire.following")
FORMER_PATH = "tidewire.protocol.follower"
"""Module that imports names from where they have moved to."""

SHELL = [
    name for name in modules("tidewire") if name != "tidewire" and not name.startswith("tidewire.protocol")
]


def test_protocol_imports_only_the_standard_library_msgspec_and_pydantic():
    allowed = sys.stdlib_module_names | {"msgspec", "pydantic", "pydantic_core"}
    outside = {
        (name, wanted)
        for name, path in modules("tidewire").items()
        if name.startswith(PURE)
        for wanted in imports(path)
        if wanted.partition(".")[0] not in allowed
        and not wanted.startswith(PURE if name.startswith("tidewire.following") else "tidewire.protocol")
        and name != FORMER_PATH
    }
    # `rfc8785` is imported inside the function that computes a digest.
    assert {wanted.partition(".")[0] for _, wanted in outside} <= {"rfc8785"}
    for name, path in modules("tidewire").items():
        if name.startswith(PURE):
            assert not any(wanted.startswith("rfc8785") for wanted in imports(path, at_top=True)), name


def test_protocol_imports_no_io_clock_or_logging_modules():
    assert offenders("tidewire", ["asyncio", "threading", "socket", "time", "logging", "os", "anyio"],
                     unless=lambda name: not name.startswith(PURE)) == []  # fmt: skip


def test_client_imports_neither_server_nor_suite():
    assert offenders("tidewire", ["tidewire_server", "tidewire_conformance"]) == []


def test_only_the_transport_imports_the_http_library():
    # The fake transport for users' tests replaces the network, so it is one of httpx2's transports.
    is_allowed = {
        "tidewire.http.transport",
        "tidewire.http.fast_body_reader",
        "tidewire.http.httpx2_fixes",
        "tidewire.http.connection_arguments",
        "tidewire.http.request_errors",
        "tidewire.http.links_and_origins",
        "tidewire.testing.fake_server",
    }
    http = ["httpx2", "httpx_sse", "httpcore2", "h11"]
    assert offenders("tidewire", http, unless=lambda name: name in is_allowed) == []


def test_client_does_not_import_its_testing_helpers():
    def of_tests(name):
        return name == "tidewire.testing" or name.startswith("tidewire.testing.")

    assert offenders("tidewire", ["tidewire.testing"], unless=of_tests) == []
    assert (
        offenders("tidewire", ["pytest"], unless=lambda name: name == "tidewire.testing.pytest_plugin") == []
    )


@pytest.mark.heavy
def test_server_imports_only_the_protocol_of_the_client():
    # A name of the root package, such as `tidewire.Client`, also counts as an import of the client.
    def shell(wanted):
        if wanted.startswith(FOR_MESSAGES):
            return False
        return wanted == "tidewire" or any(wanted == one or wanted.startswith(one + ".") for one in SHELL)

    found = [
        f"{name} imports {wanted}"
        for name, path in modules("tidewire_server").items()
        for wanted in imports(path)
        if shell(wanted)
    ]
    assert found == []


@pytest.mark.heavy
def test_suite_imports_neither_client_nor_server():
    found = offenders("tidewire_conformance", ["tidewire", "tidewire_server"])
    # The command that installs a missing package is only needed for an error message, and says nothing about a server.
    assert [each for each in found if FOR_MESSAGES[0] not in each] == []
    assert loaded_after("import tidewire_conformance.cli").isdisjoint({FOR_MESSAGES[0], "tidewire_server"})


def test_only_the_torch_engine_and_the_model_recipe_import_torch():
    def is_allowed(name):
        return name.startswith(("tidewire_server.generation.torch_engine", "tidewire_server.default_model"))

    heavy = ["torch", "transformers", "safetensors"]
    assert offenders("tidewire_server", heavy, unless=is_allowed) == []
    # The tokenizer of an upstream's model needs no torch.
    file = "tidewire_server.generation.tokenizer_file"
    assert offenders("tidewire_server", ["tokenizers"], unless=lambda n: is_allowed(n) or n == file) == []
    assert offenders("tidewire", [*heavy, "tokenizers"]) == []
    assert offenders("tidewire_conformance", [*heavy, "tokenizers"]) == []


def test_only_the_requests_to_engines_import_httpx_on_the_server():
    http = ["httpx2", "httpcore2", "h11"]
    allowed = "tidewire_server.generation.upstream.engine_requests"
    assert offenders("tidewire_server", http, unless=lambda name: name == allowed) == []


def test_only_two_folders_of_the_server_import_uvicorn():
    folders = ("tidewire_server.http.uvicorn", "tidewire_server.serving")
    assert offenders("tidewire_server", ["uvicorn"], unless=lambda name: name.startswith(folders)) == []


def test_only_the_tracing_of_the_server_imports_opentelemetry():
    only = {"tidewire_server.tracing"}
    for package in PACKAGES:
        assert offenders(package, ["opentelemetry"], unless=lambda name: name in only) == []
    path = modules("tidewire_server")["tidewire_server.tracing"]
    assert not [name for name in imports(path) if name.startswith("opentelemetry.sdk")]


def loaded_after(code):
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(ended.stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import tidewire", ["httpx2", "anyio", "pydantic", "asyncio", "typer", "rich"]),
        (
            "import tidewire.following.follower",
            ["httpx2", "httpx_sse", "anyio", "asyncio", "rfc8785", "typer", "rich"],
        ),
        ("import tidewire; dir(tidewire); tidewire.__all__", ["httpx2"]),
        (
            "from tidewire import AsyncClient",
            ["tidewire.sync", "trio", "typer", "jsonschema", "numpy", "tidewire.testing", "tidewire_server"],
        ),
        (
            "from tidewire import Client",
            ["trio", "typer", "jsonschema", "tidewire_server", "tidewire.commands.cli"],
        ),
        ("import tidewire.testing", ["pytest", "tidewire_server", "typer"]),
        ("from tidewire import Checkpoint, RetryPolicy, Update, TextDelta", ["httpx2", "anyio"]),
        (
            (
                "from tidewire_server import Server; from tidewire_server.generation.upstream import add_upstream; "
                "from tidewire_server.default_model import default_model as model; "
                "add_upstream(Server(), 'http://127.0.0.1:1/v1', tokenizer=model())"
            ),
            ["torch", "transformers", "numpy"],
        ),
        ("import tidewire.commands.cli", ["tidewire_server", "tidewire_conformance", "torch", "starlette"]),
    ],
)
def test_fresh_interpreter_loads_only_the_needed_modules(code, absent):
    assert loaded_after(code).isdisjoint(absent)


def test_first_request_imports_nothing_that_it_does_not_need():
    """A program pays for these packages with CPU time before its first response (`bench/start.py`)."""
    program = """
import http.server, json, threading
from tidewire import Client

body = {"server": "s", "durability": "process", "capabilities": [], "limits": {}, "heartbeat_ms": 1, "endpoints": []}

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass

with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Client(f"http://127.0.0.1:{server.server_port}") as client:
        assert client.discover().server == "s"
    server.shutdown()
"""
    absent = {
        "pydantic",
        "pydantic_settings",
        "typer",
        "jsonschema",
        "numpy",
        "rfc8785",
        "difflib",
        "httpx_sse",
    }
    assert loaded_after(program).isdisjoint(absent | {"tidewire.testing", "tidewire.commands"})


def test_every_public_name_exists_and_is_listed_by_dir():
    for name in tidewire.__all__:
        # `Binary` is an annotation, which has no name of its own.
        assert getattr(tidewire, name).__name__ == ("Annotated" if name == "Binary" else name)
    assert set(tidewire.__all__) <= set(dir(tidewire))
    assert tidewire.__all__ == sorted(tidewire.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = tidewire.Nothing
