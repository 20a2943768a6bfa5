"""Type checks with pyright: correct calls and the scripts of the documentation pass, wrong calls are reported, and every public name has a type."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidewire
import tidewire_server

HERE = Path(__file__).parent
CLIENT = Path(tidewire.__file__).parents[1]
SERVER = Path(tidewire_server.__file__).parents[1]

PAGES = (
    "README.md",
    "docs/how-to/cancel.md",
    "docs/how-to/many-inputs.md",
    "docs/how-to/resume.md",
    "docs/how-to/slow-readers.md",
)
"""Pages with scripts that read values without `returns`."""

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("basedpyright") is None,
        reason="basedpyright is not installed: pip install '.[dev]'",
    ),
    pytest.mark.timeout(180),
]


def pyright(folder: Path, *arguments: str) -> Any:
    """Run pyright in a folder, and return its report."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson", *arguments]
    # pyright asks the first `python` on the PATH for the locations of packages.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    return json.loads(ended.stdout)


def write_scripts_of_the_documentation(folder: Path) -> int:
    """Write the Python blocks of each page as one script, and return the number of scripts."""
    root = HERE.parents[1]
    for name in PAGES:
        found = re.findall(
            r"^```python[^\n]*\n(.*?)^```$", (root / name).read_text(), re.DOTALL | re.MULTILINE
        )
        script = folder / f"{Path(name).stem.replace('-', '_')}_page.py"
        script.write_text("# pyright: standard\n" + "\n".join(found))
    return len(PAGES)


@pytest.mark.heavy
def test_correct_calls_pass_and_wrong_calls_are_reported(tmp_path: Path) -> None:
    scripts = write_scripts_of_the_documentation(tmp_path)
    settings = {
        "include": [str(HERE), str(tmp_path)],
        "exclude": [str(HERE / "test_*.py")],
        "extraPaths": [str(CLIENT), str(SERVER)],
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    found = pyright(tmp_path)
    assert found["summary"]["filesAnalyzed"] == 6 + scripts
    messages = [
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in found["generalDiagnostics"]
    ]
    assert messages == []


@pytest.mark.slow
def test_every_public_name_has_a_type() -> None:
    # pyright finds an uninstalled package only from the folder that contains it.
    found = pyright(CLIENT, "--ignoreexternal", "--verifytypes", "tidewire")["typeCompleteness"]
    untyped = [one["name"] for one in found["symbols"] if one["isExported"] and not one["isTypeKnown"]]
    assert untyped == []
    assert len(found["symbols"]) > 1000
    assert found["completenessScore"] == 1
