"""Training corpus of the default model. It consists of files of the Python 3.11 standard library.

The manifest `corpus.json` lists the files with their SHA-256. It leaves out tests, grammars, tables of generated data, and
files whose content depends on how Python was built. Files that are missing or differ from the manifest are called *drift*.
For example, some files differ in another patch release of Python. If there is drift, the training script lists these files
and stops, unless its option `--allow-drift` is set.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

MANIFEST = Path(__file__).with_name("corpus.json")

VALIDATION_EVERY = 20
"""One in this number of files is held out for validation. The choice depends only on the names of the files."""


class CorpusError(Exception):
    """The files of the training corpus do not match the manifest, or they contain too little text."""


@dataclass(frozen=True)
class Corpus:
    """Contents of the files of the training corpus, split into training and validation data."""

    python: str
    """Release of Python to which the files in the manifest belong."""
    train: list[str]
    validation: list[str]
    drift: list[str]
    """Files that are missing or differ from the manifest, with one line for each file. Empty if all files match."""
    digest: str
    """SHA-256 of the names and contents of all files."""


def read(folder: Path, *, allow_drift: bool = False, manifest: Path = MANIFEST) -> Corpus:
    """Read the files of the training corpus, and verify that they match the manifest.

    Args:
        folder: Folder of a Python standard library, or the folder `Lib/` of Python's source archive.
        allow_drift: Whether to accept missing and different files, and to list them in `Corpus.drift`.
        manifest: Path of the manifest.

    Raises:
        CorpusError: A file is missing or different although `allow_drift` is false, or the folder contains too few of
            the files in the manifest.
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
        raise CorpusError(
            f"{folder} contains too few of the {len(recorded['files'])} files listed in {manifest.name}"
        )
    if drift and not allow_drift:
        shown = "\n  ".join(drift[:20]) + (f"\n  … and {len(drift) - 20} more" if len(drift) > 20 else "")
        raise CorpusError(
            f"{len(drift)} of {len(recorded['files'])} files in {folder} differ from those of Python {recorded['python']}:\n"
            f"  {shown}\n"
            f"To reproduce the model, pass the sources of that release with --stdlib (Lib/ of its source archive). "
            f"To train on these files anyway, add --allow-drift. The differences are then recorded in training.json."
        )
    return Corpus(recorded["python"], train, validation, drift, digest.hexdigest())
