"""An interpreter that lacks a package: what works without it, and the one line that names the install command.

A finder in a fresh interpreter hides packages: it raises the ModuleNotFoundError of a package that is not installed.
"""

import os
import subprocess
import sys
from importlib import metadata

import pytest

CLI = ("typer", "rich", "click", "shellingham")
SERVER = ("orjson", "prometheus_client", "starlette", "uvicorn", "httptools", "uvloop")
SUITE = ("jsonschema",)
ENGINE = ("torch", "transformers", "tokenizers", "safetensors", "jinja2", "numpy")
CODEGEN = ("datamodel_code_generator",)
ALL = (*CLI, *SERVER, *SUITE, *ENGINE, *CODEGEN)


HIDE = """
import sys

class Hidden:
    def find_spec(name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden)
"""


@pytest.fixture
def lacking(tmp_path):
    """Run Python without some packages."""

    def run(hidden, *arguments):
        (tmp_path / "sitecustomize.py").write_text(HIDE.format(names=set(hidden)), encoding="utf-8")
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    return run


USE = """
import tidewire
from tidewire import AsyncClient, Client
from tidewire.testing import FakeServer
for name in tidewire.__all__:
    getattr(tidewire, name)
import tidewire.under_test, tidewire.testing.pytest_plugin
with FakeServer() as server:
    server.endpoint("shout").returns("HELLO")
    with Client(server.url) as client:
        print(client.run("shout", text="hello"))
"""


def test_the_base_install_imports_and_calls(lacking):
    done = lacking(ALL, "-W", "error", "-c", USE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "HELLO\n", "")


SCRIPT = ["-c", "from tidewire.__main__ import main; main()"]
"""What the installed script `tidewire` runs."""


@pytest.mark.parametrize("start", [SCRIPT, ["-m", "tidewire"]], ids=["script", "module"])
@pytest.mark.parametrize("arguments", [[], ["--help"], ["serve"], ["call", "http://127.0.0.1:1"]])
def test_without_the_extra_cli_the_command_prints_one_line(lacking, start, arguments):
    done = lacking(ALL, *start, *arguments)
    line = "tidewire: the command line needs typer: pip install 'tidewire[cli]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_a_half_of_the_extra_cli_is_reported_too(lacking):
    done = lacking(["rich"], *SCRIPT, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tidewire: the command line needs rich: pip install 'tidewire[cli]'\n"


def test_a_broken_base_install_is_not_taken_for_a_missing_extra(lacking):
    done = lacking(["httpx"], *SCRIPT, "--help")
    assert done.returncode == 1
    assert "tidewire[cli]" not in done.stderr
    assert "httpx" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        (["serve"], "orjson", "server"),
        (["serve", "mine.py:server", "--port", "0"], "orjson", "server"),
        (["conformance", "http://127.0.0.1:1"], "jsonschema", "conformance"),
        (["conformance", "--client", "true"], "jsonschema", "conformance"),
        (["codegen", "http://127.0.0.1:1"], "datamodel_code_generator", "codegen"),
    ],
)
def test_a_command_whose_extra_is_missing_names_it(lacking, arguments, missing, extra):
    done = lacking((*SERVER, *SUITE, *ENGINE, *CODEGEN), *SCRIPT, *arguments)
    line = f"tidewire: `tidewire {arguments[0]}` needs {missing}: pip install 'tidewire[{extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_other_commands_and_the_help_need_the_extra_cli_only(lacking):
    hidden = (*SERVER, *SUITE, *ENGINE, *CODEGEN)
    done = lacking(hidden, *SCRIPT, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tidewire[server]" in done.stdout
    assert "tidewire[conformance]" in done.stdout
    done = lacking(hidden, *SCRIPT, "describe", "http://127.0.0.1:1")
    assert (done.returncode, "no server is listening" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("hidden", "module", "missing", "extra"),
    [
        (CLI, "tidewire_server", "typer", "server"),
        (CLI, "tidewire_conformance", "typer", "conformance"),
        (SUITE, "tidewire_conformance", "jsonschema", "conformance"),
    ],
)
def test_the_modules_name_their_extra_as_well(lacking, hidden, module, missing, extra):
    done = lacking(hidden, "-m", module, "http://127.0.0.1:1")
    line = f"tidewire: `python -m {module}` needs {missing}: pip install 'tidewire[{extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.parametrize("hidden", ENGINE[:2])
def test_a_missing_dependency_of_the_engine_names_it(lacking, hidden):
    done = lacking([hidden], *SCRIPT, "serve")
    line = f"tidewire serve: {hidden} is not installed; install it with: pip install 'tidewire[engine]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


@pytest.mark.parametrize(
    ("hidden", "code", "extra"),
    [
        (["orjson"], "import tidewire_server", "server"),
        (["uvicorn"], "from tidewire_server import Server; Server().run(port=0)", "server"),
        (["httptools"], "from tidewire_server import Server; Server().run(port=0)", "server"),
        (
            ["torch"],
            "from tidewire_server import Server, generation; generation.add_generate(Server())",
            "engine",
        ),
        (["tokenizers"], "import tidewire_server.model.recipe", "engine"),
    ],
)
def test_an_import_that_fails_names_the_extra_in_its_last_line(lacking, hidden, code, extra):
    done = lacking(hidden, "-c", code)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {hidden[0]}")
    assert f"pip install 'tidewire[{extra}]'" in last


def test_the_plugin_of_the_suite_names_its_extra(lacking):
    plugin = ["-p", "tidewire_conformance.pytest_plugin", "-p", "no:cacheprovider"]
    done = lacking(SUITE, "-m", "pytest", *plugin, "--tidewire-url=http://127.0.0.1:1")
    line = "ERROR: tidewire_conformance.pytest_plugin needs jsonschema: pip install 'tidewire[conformance]'"
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert line in done.stderr.splitlines()
    assert "Traceback" not in done.stderr


def test_the_plugin_for_tests_of_applications_needs_no_extra(lacking, tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "def test_it(tidewire_server):\n    assert tidewire_server.url\n", encoding="utf-8"
    )
    plugin = ["-p", "tidewire.testing.pytest_plugin", "-p", "no:cacheprovider"]
    done = lacking(ALL, "-m", "pytest", "-q", *plugin, "test_mine.py")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_version_is_printed_without_any_extra_and_without_importing_the_command_line(lacking):
    done = lacking((*CLI, *SERVER, *SUITE, *ENGINE, *CODEGEN), *SCRIPT, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{metadata.version('tidewire')}\n", "")
