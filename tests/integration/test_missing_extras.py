"""Behavior without optional packages: code works without them or names the install command in one line.

A finder in a fresh interpreter hides packages by raising the ModuleNotFoundError of a package that is not
installed.
"""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tidewire
from tidewire.install_command import install_command

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
def run_without(tmp_path):
    """A function that runs Python with some packages hidden."""

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


def test_the_base_install_imports_and_runs_a_job(run_without):
    done = run_without(ALL, "-W", "error", "-c", USE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "HELLO\n", "")


SCRIPT = ["-c", "from tidewire.__main__ import main; main()"]
"""The code that the installed script `tidewire` runs."""


@pytest.mark.parametrize(
    ("start", "arguments"),
    [
        (SCRIPT, []),
        (SCRIPT, ["serve"]),
        (SCRIPT, ["call", "http://127.0.0.1:1"]),
        (["-m", "tidewire"], ["--help"]),
    ],
)
def test_without_the_cli_extra_the_command_prints_one_line(run_without, start, arguments):
    done = run_without(ALL, *start, *arguments)
    extra = "server" if arguments == ["serve"] else "cli"
    line = f"tidewire: the command line needs typer: {install_command(extra)}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_one_missing_package_of_the_cli_extra_is_reported(run_without):
    done = run_without(["rich"], *SCRIPT, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tidewire: the command line needs rich: {install_command('cli')}\n"


def test_a_broken_base_install_is_not_reported_as_a_missing_extra(run_without):
    done = run_without(["httpx2"], *SCRIPT, "--help")
    assert done.returncode == 1
    assert "[cli]" not in done.stderr
    assert "httpx2" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        (["serve"], "orjson", "server"),
        pytest.param(["serve", "mine.py:server", "--port", "0"], "orjson", "server", marks=pytest.mark.slow),
        (["conformance", "http://127.0.0.1:1"], "jsonschema", "conformance"),
        pytest.param(
            ["conformance", "--client", "true"], "jsonschema", "conformance", marks=pytest.mark.slow
        ),
        (["codegen", "http://127.0.0.1:1"], "datamodel_code_generator", "codegen"),
    ],
)
def test_a_command_names_its_missing_extra(run_without, arguments, missing, extra):
    done = run_without((*SERVER, *SUITE, *ENGINE, *CODEGEN), *SCRIPT, *arguments)
    line = f"tidewire: `tidewire {arguments[0]}` needs {missing}: {install_command(extra)}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


RAY = """
from tidewire_server import Server, ray_workers

server = Server()

@server.endpoint(batch=True, workers=ray_workers(2))
def echo(words: list[str]) -> list[str]:
    return words
"""


@pytest.mark.heavy
def test_a_server_with_ray_workers_names_the_missing_extra(run_without, tmp_path):
    (tmp_path / "mine.py").write_text(RAY)
    done = run_without(["ray"], *SCRIPT, "serve", "mine.py:server", "--port", "0")
    line = f"tidewire serve: ray_workers needs ray, which is not installed: {install_command('ray')}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


@pytest.mark.heavy
def test_help_and_client_commands_need_only_the_cli_extra(run_without):
    hidden = (*SERVER, *SUITE, *ENGINE, *CODEGEN)
    done = run_without(hidden, *SCRIPT, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "[server]" in done.stdout
    assert "[conformance]" in done.stdout
    done = run_without(hidden, *SCRIPT, "describe", "http://127.0.0.1:1")
    assert (done.returncode, "no server is listening" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("hidden", "module", "missing", "extra"),
    [
        (CLI, "tidewire_server", "typer", "server"),
        pytest.param(CLI, "tidewire_conformance", "typer", "conformance", marks=pytest.mark.slow),
        (SUITE, "tidewire_conformance", "jsonschema", "conformance"),
    ],
)
def test_python_dash_m_names_the_missing_extra(run_without, hidden, module, missing, extra):
    done = run_without(hidden, "-m", module, "http://127.0.0.1:1")
    line = f"tidewire: `python -m {module}` needs {missing}: {install_command(extra)}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.heavy
@pytest.mark.parametrize("hidden", [ENGINE[0], pytest.param(ENGINE[1], marks=pytest.mark.slow)])
def test_serve_names_a_missing_engine_package(run_without, hidden):
    done = run_without([hidden], *SCRIPT, "serve")
    line = f"tidewire serve: {hidden} is not installed; install it with: {install_command('engine')}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("hidden", "code", "extra"),
    [
        (["orjson"], "import tidewire_server", "server"),
        (["uvicorn"], "from tidewire_server import Server; Server().run(port=0)", "server"),
        pytest.param(
            ["httptools"],
            "from tidewire_server import Server; Server().run(port=0)",
            "server",
            marks=pytest.mark.slow,
        ),
        (
            ["torch"],
            "from tidewire_server import Server, generation; generation.add_generate(Server())",
            "engine",
        ),
        (["tokenizers"], "import tidewire_server.default_model.recipe", "engine"),
    ],
)
def test_a_failed_import_names_the_extra_in_its_last_line(run_without, hidden, code, extra):
    done = run_without(hidden, "-c", code)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert f"needs {hidden[0]}, which is not installed" in last
    assert last.endswith(f": {install_command(extra)}")


def test_the_conformance_pytest_plugin_names_its_extra(run_without):
    plugin = ["-p", "tidewire_conformance.pytest_plugin", "-p", "no:cacheprovider"]
    done = run_without(SUITE, "-m", "pytest", *plugin, "--tidewire-url=http://127.0.0.1:1")
    line = f"ERROR: tidewire_conformance.pytest_plugin needs jsonschema: {install_command('conformance')}"
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert line in done.stderr.splitlines()
    assert "Traceback" not in done.stderr


def test_the_client_pytest_plugin_needs_no_extra(run_without, tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "def test_it(tidewire_server):\n    assert tidewire_server.url\n", encoding="utf-8"
    )
    plugin = ["-p", "tidewire.testing.pytest_plugin", "-p", "no:cacheprovider"]
    done = run_without(ALL, "-m", "pytest", "-q", *plugin, "test_mine.py")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_version_needs_no_extra(run_without):
    done = run_without((*CLI, *SERVER, *SUITE, *ENGINE, *CODEGEN), *SCRIPT, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{metadata.version('tidewire')}\n", "")


# ---- the command that installs an extra ----------------------------------------------------------------------------


def installed_from(monkeypatch, tmp_path, direct_url):
    """Make `tidewire` look as if pip had installed it from a certain place. None: from a package index."""
    info = tmp_path / "tidewire-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidewire\nVersion: 9.0\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(direct_url)
    monkeypatch.syspath_prepend(tmp_path)


WHEEL = "file:///tmp/my%20wheels/tidewire-9.0-py3-none-any.whl"
GIT = "https://git.example/tidewire"


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, "pip install 'tidewire[server]'"),
        ('{"url": "file:///src/tide", "dir_info": {"editable": true}}', "pip install -e '/src/tide[server]'"),
        ('{"url": "file:///src/tide", "dir_info": {}}', "pip install '/src/tide[server]'"),
        (
            f'{{"url": "{WHEEL}", "archive_info": {{}}}}',
            "pip install '/tmp/my wheels/tidewire-9.0-py3-none-any.whl[server]'",
        ),
        (
            f'{{"url": "{GIT}", "vcs_info": {{"vcs": "git", "commit_id": "abc"}}}}',
            f"pip install 'tidewire[server] @ git+{GIT}@abc'",
        ),
        (
            '{"url": "https://files.example/tidewire.whl", "archive_info": {}}',
            "pip install 'tidewire[server] @ https://files.example/tidewire.whl'",
        ),
        ("[]", "pip install 'tidewire[server]'"),
        ("not JSON", "pip install 'tidewire[server]'"),
    ],
)
def test_command_names_the_place_from_which_tidewire_was_installed(
    monkeypatch, tmp_path, direct_url, command
):
    installed_from(monkeypatch, tmp_path, direct_url)
    assert install_command("server") == command


def test_source_code_that_is_not_installed_is_named():
    # -S leaves out the installed packages.
    code = "from tidewire.install_command import install_command; print(install_command('server'))"
    source = str(Path(tidewire.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "pip install '.[server]' in the folder with the source code of Tidewire\n"


BENCH = Path(__file__).parents[2] / "bench"
PEERS = (
    "gguf",
    "xllamacpp",
    "gradio",
    "gradio_client",
    "openai",
    "sse_starlette",
    "fastapi",
    "jsonpatch",
    "deepdiff",
)


@pytest.mark.parametrize(
    "script",
    [
        "wire",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("engine_cpu", "end_to_end", "readers", "streams", "client", "batching", "short_runs")
        ),
    ],
)
def test_measurement_starts_without_its_peers(run_without, script):
    done = run_without(PEERS, BENCH / f"{script}.py", "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_measurement_without_a_peer_says_so_once_with_the_command(run_without):
    use = f"import sys; sys.path.insert(0, {str(BENCH)!r})\nfrom measured import installed\n"
    use += "print(installed('gguf'), installed('gguf'), installed('gradio_client.utils'), installed('json'))"
    done = run_without(PEERS, "-c", use)
    assert done.stdout == "False False False True\n"
    assert done.stderr.splitlines() == [
        f"{name} is not installed, so it is not measured; `pip install -e '.[peers]'` installs it"
        for name in ("gguf", "gradio_client.utils")
    ]


def test_decoder_measurement_without_httpx_sse_ends_with_one_line(run_without):
    done = run_without(("httpx_sse",), BENCH / "decoder.py", "--help")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install -e '.[peers]'" in done.stderr


def test_table_of_the_engine_counts_only_the_targets_of_measured_peers(run_without, tmp_path):
    peer = "transformers, continuous batching"
    row = {"model": "default", "requests": 1, "microseconds": {"tidewire": 1.0, peer: 2.0}, "profile": {}}
    row |= {"ratios": {peer: 2.0}, "targets": {peer: 1.3}}
    (tmp_path / "results").mkdir()
    (tmp_path / "results/engine_cpu.json").write_text(
        json.dumps({"rows": [row], "python": "3.11", "versions": {}}), encoding="utf-8"
    )
    use = f"import sys; sys.path.insert(0, {str(BENCH)!r})\nfrom pathlib import Path\nimport engine_tables\n"
    done = run_without(
        PEERS, "-c", use + f"engine_tables.HERE = Path({str(tmp_path)!r})\nprint(engine_tables.engine_cpu())"
    )
    assert "1 of 1 targets are met" in done.stdout, done.stderr
