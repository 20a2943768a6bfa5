"""Types of the JavaScript package: its JSDoc, and the declarations that `tsc` generates from it for users of TypeScript."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients/javascript"
LOCAL = ROOT / ".venv/typescript/node_modules/.bin"
TSC = shutil.which("tsc", path=LOCAL) or shutil.which("tsc")
DECLARATIONS = ("--noEmit", "false", "--declaration", "--emitDeclarationOnly", "--outDir")

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


def tsc(*arguments, cwd=PACKAGE):
    run = subprocess.run(
        [str(TSC), *arguments], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )
    return run.returncode, run.stdout + run.stderr


def test_the_sources_are_typed():
    assert tsc("-p", ".") == (0, "")


def test_the_declarations_are_current(tmp_path):
    code, output = tsc("-p", ".", *DECLARATIONS, str(tmp_path))
    assert (code, output) == (0, "")
    written = {path.name: path.read_text(encoding="utf-8") for path in (PACKAGE / "types").iterdir()}
    generated = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    again = f"in clients/javascript: tsc -p . {' '.join(DECLARATIONS)} types"
    assert written == generated, again


def compiled(program, folder):
    (folder / "node_modules").mkdir(exist_ok=True)
    if not (folder / "node_modules/tidewire").exists():
        (folder / "node_modules/tidewire").symlink_to(PACKAGE)
    (folder / "program.mts").write_text(program, encoding="utf-8")
    options = ("--strict", "--noEmit", "--target", "es2022", "--module", "nodenext")
    return tsc(*options, "program.mts", cwd=folder)


def test_a_typescript_program_compiles_with_the_package(tmp_path):
    assert compiled(PROGRAM, tmp_path) == (0, "")


def test_a_wrong_type_does_not_compile(tmp_path):
    code, output = compiled(PROGRAM.replace("event.position.toFixed()", "event.position.trim()"), tmp_path)
    assert code != 0
    assert "trim" in output
