"""Behaviors of the JavaScript package in Node: loops, waits, limits, errors, and hostile servers."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from interop.test_foreign_client import TEXT, run
from support.foreign_programs import INTEROP, NODE, javascript_server, needs_node
from support.sample_server import served
from tidewire import Checkpoint, Client

pytestmark = [needs_node, pytest.mark.timeout(180)]

SCRIPT = INTEROP / "javascript/behaviors.mjs"
SOURCES = Path(__file__).parents[2] / "clients/javascript/src"


def node(*arguments):
    command = [str(NODE), SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=True).stdout


NAMES = json.loads(node()) if NODE else ["none"]


@pytest.fixture(scope="module")
def errors(request):
    """Errors of the selected behaviors by name, or None. All run in one process, which must also end."""
    tests = {item.name for item in request.session.items}
    selected = [name for name in NAMES if f"{test_behavior.__name__}[{name}]" in tests]
    with served(retry=0.02) as url:
        lines = map(json.loads, node(url, *selected).splitlines())
        return {line["name"]: line["error"] for line in lines}


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_behavior(name, errors):
    assert errors[name] is None


def test_python_continues_from_a_checkpoint_of_javascript():
    with javascript_server() as server:
        first = run(server, "words", {"input": {"text": TEXT, "delay_ms": 2}}, stopAfter=9)
        saved = Checkpoint.from_json(first.job["checkpoint"])
        with Client(server) as client:
            rest = "".join(update.text for update in client.job(checkpoint=saved))
    assert 0 < len(first.text) < len(TEXT)
    assert first.text + rest == TEXT


def test_bundlers_for_browsers_find_no_module_of_node():
    sources = [path.read_text(encoding="utf-8") for path in SOURCES.iterdir()]
    assert not re.findall(r"from \"node:", "".join(sources))
    # With these comments, webpack and Vite leave an import as it is. Otherwise they warn, and some builds fail on warnings.
    imports = re.findall(r"await import\((.*?)\)", "".join(sources))
    assert imports == ["/* webpackIgnore: true */ /* @vite-ignore */ name"]
