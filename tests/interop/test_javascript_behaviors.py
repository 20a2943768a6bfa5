"""Behaviors of the JavaScript package in Node: loops, waits, limits, errors, and hostile servers."""

import json
import subprocess

import pytest

from interop.test_foreign_client import TEXT, run
from support.foreign_programs import INTEROP, NODE, javascript_server, needs_node
from support.sample_server import served
from tidewire import Checkpoint, Client

pytestmark = [needs_node, pytest.mark.timeout(60)]

SCRIPT = INTEROP / "javascript/behaviors.mjs"


def node(*arguments):
    return subprocess.run(
        [str(NODE), SCRIPT, *arguments], capture_output=True, text=True, timeout=50, check=False
    )


NAMES = json.loads(node("--list").stdout) if NODE else ["none"]


@pytest.fixture(scope="module")
def url():
    with served(retry=0.02) as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_behavior(name, url):
    result = node(name, url)
    assert result.returncode == 0, result.stderr


def test_python_continues_from_a_checkpoint_of_javascript():
    with javascript_server() as server:
        first = run(server, "words", {"input": {"text": TEXT, "delay_ms": 2}}, stopAfter=9)
        saved = Checkpoint.from_json(first.job["checkpoint"])
        with Client(server) as client:
            rest = "".join(update.text for update in client.job(checkpoint=saved))
    assert 0 < len(first.text) < len(TEXT)
    assert first.text + rest == TEXT
