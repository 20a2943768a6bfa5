"""The training text: a fixed list of files of the Python 3.11 standard library, each with its SHA-256.

`corpus.json` is that list. A file that is missing or differs is *drift*: another patch release of Python
has other sources. The recipe then names what differs and stops, unless drift is allowed.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

MANIFEST = Path(__file__).with_name("corpus.json")

# Tests and grammars, tables that are no prose of a programmer, and files that the build of one machine writes.
SKIPPED_FOLDERS = frozenset(
    {
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "site-packages",
        "dist-packages",
        "ensurepip",
        "__phello__",
        "__pycache__",
    }
)
SKIPPED_PREFIXES = (
    "_sysconfigdata",
    "lib-dynload/",
    "config-",
    "pydoc_data/",
    "encodings/cp",
    "encodings/iso",
    "encodings/mac",
    "encodings/koi8",
)
SKIPPED_FILES = frozenset(
    {
        "html/entities.py",
        "encodings/hp_roman8.py",
        "encodings/ptcp154.py",
        "encodings/kz1048.py",
        "encodings/tis_620.py",
        "encodings/palmos.py",
    }
)

VALIDATION_EVERY = 20
"""One file in this many is held out, chosen by its name, so that drift does not move files over the border."""


class CorpusError(Exception):
    """The files here are not the files of the list."""


@dataclass(frozen=True)
class Corpus:
    """The text, split by file."""

    python: str
    """The release whose files the list names."""
    train: list[str]
    validation: list[str]
    drift: list[str]
    """What differs from the list, one line each; empty where the text is exactly the recorded one."""
    digest: str
    """SHA-256 over names and contents as read."""


def source_folder() -> Path:
    """Where the running interpreter keeps its standard library."""
    return Path(sysconfig.get_path("stdlib"))


def list_files(folder: Path) -> list[str]:
    """The names that belong to the corpus, relative to `folder`, sorted."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    return sorted(
        name
        for name in names
        if SKIPPED_FOLDERS.isdisjoint(name.split("/"))
        and not name.startswith(SKIPPED_PREFIXES)
        and name not in SKIPPED_FILES
    )


def write_manifest(folder: Path, python: str, manifest: Path = MANIFEST) -> int:
    """Record the files of `folder` as the list; returns how many they are."""
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in list_files(folder)}
    manifest.write_text(json.dumps({"python": python, "files": files}, indent=0) + "\n", encoding="utf-8")
    return len(files)


def read(folder: Path, *, allow_drift: bool = False, manifest: Path = MANIFEST) -> Corpus:
    """Read and verify the corpus.

    Args:
        folder: a standard library, or `Lib/` of Python's source.
        allow_drift: go on with what is there, and record what differs.
        manifest: the list of files.

    Raises:
        CorpusError: a file is missing or differs and drift is not allowed, or nothing of the list is there.
    """
    recorded = json.loads(manifest.read_text(encoding="utf-8"))
    train: list[str] = []
    validation: list[str] = []
    drift: list[str] = []
    digest = hashlib.sha256()
    for name, expected in recorded["files"].items():
        try:
            data = (folder / name).read_bytes()
        except FileNotFoundError:
            drift.append(f"missing: {name}")
            continue
        if hashlib.sha256(data).hexdigest() != expected:
            drift.append(f"differs: {name}")
        digest.update(name.encode() + b"\0" + data)
        held_out = zlib.crc32(name.encode()) % VALIDATION_EVERY == 0
        (validation if held_out else train).append(data.decode("utf-8", "replace"))
    if not train or not validation:
        raise CorpusError(f"{folder} holds none of the {len(recorded['files'])} files of {manifest.name}")
    if drift and not allow_drift:
        shown = "\n  ".join(drift[:20]) + (f"\n  … and {len(drift) - 20} more" if len(drift) > 20 else "")
        raise CorpusError(
            f"{len(drift)} of {len(recorded['files'])} files in {folder} are not those of Python {recorded['python']}:\n"
            f"  {shown}\n"
            f"To reproduce the model, name that release's sources with --stdlib (Lib/ of its source archive). "
            f"To train on what is here, add --allow-drift; the difference is then recorded in training.json."
        )
    return Corpus(recorded["python"], train, validation, drift, digest.hexdigest())
