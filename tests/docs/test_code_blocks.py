"""Runs every code block of the README and of `docs/`, page by page, against a real server.

```python            is executed; the blocks of a page share a namespace and a working folder, and a block may use `await`,
                     as a notebook cell may
```python file=NAME  is also written to that folder, so that later blocks can import it; its tests are executed
```python needs=NAME is executed in a process of its own; it is skipped, with the rest of the page, where the module NAME is
                     not installed. With `file=` as well, only this block is skipped, because a file can be run later
```console           its `tidewire` commands are executed; `tidewire serve` is started, called and stopped. A new PostgreSQL
                     database replaces the database that a command names
"""

import ast
import asyncio
import gc
import inspect
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from proof.forked_process import ENGINE_IMPORTS, Forked
from support.postgres_server import needs_postgres

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN_URL = "http://127.0.0.1:8000"
WRITTEN_DATABASE = "postgresql://tidewire@db/tidewire"
STORY = ROOT / "docs/tutorial/first-stream.md"

pytestmark = pytest.mark.timeout(180)


class Block(NamedTuple):
    language: str
    file: str | None
    needs: str | None
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    found = []
    for match in re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        file = re.search(r"\bfile=(\S+)", match[2])
        line = page.read_text()[: match.start(3)].count("\n")
        needs = re.search(r"\bneeds=(\S+)", match[2])
        found.append(Block(match[1], file and file[1], needs and needs[1], line, match[3]))
    return found


def with_language(language: str) -> list[Path]:
    return [page for page in PAGES if any(block.language == language for block in blocks(page))]


def is_slow(page: Path) -> bool:
    """Whether a page has code that imports a package for which it takes seconds."""
    return any(block.needs in {"gradio", "ray"} for block in blocks(page))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def start_command(module: str, *arguments: str, **options: Any) -> Forked:
    """Start a command in a fork server that has done the common imports."""
    return Forked(module, *arguments, imports=ENGINE_IMPORTS, **options)


def wait_for_port(process: Forked, port_file: Path) -> int:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if port_file.exists() and port_file.read_text().strip():
            return int(port_file.read_text())
        time.sleep(0.05)
    raise AssertionError("the server did not start")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    story = folder / "story.py"
    story.write_text(next(block.text for block in blocks(STORY) if block.file == "story.py"))
    with start_command("docs.site", str(story), str(folder / "port"), cwd=ROOT / "tests") as process:
        yield f"http://127.0.0.1:{wait_for_port(process, folder / 'port')}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


# Python hides ResourceWarnings by default, and a page may use a client without closing it.
@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:a tidewire client was not closed:ResourceWarning")
@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if is_slow(page) else ()) for page in with_language("python")],
    ids=name_of,
)
def test_python_blocks_of_a_page_run(page, site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    names = {"__name__": "a_page"}
    left_out = []
    try:
        for block in blocks(page):
            if block.language != "python":
                continue
            text = block.text.replace(WRITTEN_URL, site)
            if block.needs is not None:
                if find_spec(block.needs) is not None:
                    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)
                elif block.file is None:
                    pytest.skip(f"needs {block.needs}, for line {block.line} of the page")
                else:
                    left_out.append(block)
                continue
            if block.file is not None:
                Path(block.file).write_text(text)
                for name, test in runpy.run_path(block.file).items():
                    if name.startswith("test_"):
                        test()
            # Leading newlines align the line numbers of a traceback with the page.
            code = compile("\n" * block.line + text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(eval(code, names))
            else:
                exec(code, names)
    finally:
        names.clear()
        gc.collect()
        for name in set(sys.modules) - known:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]
    if left_out:
        pytest.skip(
            f"needs {left_out[0].needs}, for line {left_out[0].line} of the page; the other blocks have passed"
        )


@pytest.mark.parametrize("page", sorted((ROOT / "docs/how-to").glob("*.md")), ids=name_of)
def test_a_how_to_says_first_which_server_its_code_needs(page):
    calls = [each for each in blocks(page) if each.language == "python" and WRITTEN_URL in each.text]
    if calls:
        assert "`tidewire serve" in page.read_text().partition("```")[0]


def commands(page: Path) -> list[str]:
    return [
        line.removeprefix("$ ").partition("  #")[0].strip()
        for block in blocks(page)
        if block.language == "console"
        for line in block.text.splitlines()
        if line.startswith("$ tidewire ")
    ]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("page", "command"),
    [
        pytest.param(page, command, marks=needs_postgres if WRITTEN_DATABASE in command else ())
        for page in with_language("console")
        for command in commands(page)
        if "~" not in command or "--show-config" in command  # `~` refers to a folder of the reader
    ],
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_command_of_a_page_works(page, command, site, tmp_path, request):
    for block in blocks(page):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    _, *words = shlex.split(command)
    arguments = [word.replace(WRITTEN_URL, site) for word in words]
    if WRITTEN_DATABASE in words:
        arguments[words.index(WRITTEN_DATABASE)] = request.getfixturevalue("database_url")
    if words[0] != "serve" or "--show-config" in words:
        # As with an activated environment: `python3` in a command has the packages installed.
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        with start_command("tidewire", *arguments, cwd=tmp_path, env=env) as process:
            out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert out
        return
    arguments += ["--port", "0", "--port-file", str(tmp_path / "port")]
    with start_command("tidewire", *arguments, cwd=tmp_path) as process:
        url = f"http://127.0.0.1:{wait_for_port(process, tmp_path / 'port')}"
        assert httpx2.get(f"{url}/v1").json()["endpoints"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_links_of_pages_have_existing_targets():
    broken = [
        f"{name_of(page)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken
