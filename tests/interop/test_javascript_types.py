"""Types of the JavaScript package: its JSDoc, and the declarations that `npm pack` generates from it for users of TypeScript."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients/javascript"
LOCAL = ROOT / ".venv/typescript/node_modules/.bin"
TSC = shutil.which("tsc", path=LOCAL) or shutil.which("tsc")

pytestmark = [
    pytest.mark.skipif(
        TSC is None,
        reason="typescript is not installed: npm install --prefix .venv/typescript typescript@5.9.3",
    ),
    pytest.mark.timeout(120),
]

PROGRAM = """
import { Client, InvalidInputError, type Token } from "tidewire";

const client = new Client("http://127.0.0.1:8000", { token: async () => "t", retry: { attempts: 3 } });
const job = await client.submit("generate", { prompt: "a" }, { listener: (event) => {
  if (event.type === "queue") console.log(event.position.toFixed());
  if (event.type === "connection") console.log(event.retryInMs?.toFixed());
} });
for await (const update of job) console.log(update.text.length, update.ops?.length);
const tokens: Token[] = [];
for await (const token of job.tokens()) tokens.push(token);
const pointer: string | null = new InvalidInputError("what").pointer;
"""


def tsc(*arguments, cwd):
    run = subprocess.run(
        [str(TSC), *arguments], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )
    return run.returncode, run.stdout + run.stderr


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package with its declarations, as `npm pack` writes them."""
    folder = tmp_path_factory.mktemp("package") / "tidewire"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("node_modules", "types"))
    scripts = json.loads((folder / "package.json").read_text(encoding="utf-8"))["scripts"]
    assert scripts == {"types": "tsc -p .", "prepack": "npm run types"}
    code, output = tsc("-p", ".", cwd=folder)
    assert (code, output) == (0, "")
    return folder


@pytest.mark.heavy
def test_only_programs_with_correct_types_compile_with_the_package(package, tmp_path):
    wrong = PROGRAM.replace("event.position.toFixed()", "event.position.trim()")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/tidewire").symlink_to(package)
    (tmp_path / "correct.mts").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "wrong.mts").write_text(wrong, encoding="utf-8")
    options = ("--strict", "--noEmit", "--target", "es2022", "--module", "nodenext")
    code, output = tsc(*options, "correct.mts", "wrong.mts", cwd=tmp_path)
    assert code != 0
    [error] = output.splitlines()
    assert error.startswith("wrong.mts")
    assert "'trim' does not exist" in error
