"""Test vectors of the specification (spec/vectors) as data."""

import base64
import json
from pathlib import Path

import pytest

from support.tables import for_each_case

SPEC = Path(__file__).resolve().parents[2] / "spec"
FOLDER = SPEC / "vectors"
NAMES = sorted(str(file.relative_to(FOLDER).with_suffix("")) for file in FOLDER.glob("*/*.json"))


def load_vectors(name):
    """Load a file of vectors, such as `sse/framing`."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def for_each_vector(name):
    """Run a test with each vector of a file as its only argument, all in one test."""
    return for_each_case(
        ((vector,) for vector in load_vectors(name)["vectors"]), ids=lambda vector: vector["name"]
    )


def parametrize_by_vector(name):
    """Parametrize a test over the vectors of a file, as the argument `vector`, next to fixtures."""
    return pytest.mark.parametrize("vector", load_vectors(name)["vectors"], ids=lambda vector: vector["name"])


def bytes_of(vector, text, encoded):
    """Return the bytes that a vector contains as text or in base64."""
    return vector[text].encode() if text in vector else base64.b64decode(vector[encoded])
