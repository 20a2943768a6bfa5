"""Test vectors of the specification (spec/vectors) as data."""

import base64
import json
from pathlib import Path

import pytest

SPEC = Path(__file__).resolve().parents[2] / "spec"
FOLDER = SPEC / "vectors"
NAMES = sorted(str(file.relative_to(FOLDER).with_suffix("")) for file in FOLDER.glob("*/*.json"))


def load_vectors(name):
    """Load a file of vectors, such as `sse/framing`."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def for_each_vector(name):
    """Parametrize a test over the vectors of a file, as the argument `vector`."""
    return pytest.mark.parametrize("vector", load_vectors(name)["vectors"], ids=lambda vector: vector["name"])


def bytes_of(vector, text, encoded):
    """Return the bytes that a vector contains as text or in base64."""
    return vector[text].encode() if text in vector else base64.b64decode(vector[encoded])
