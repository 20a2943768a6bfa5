"""Test vectors of the specification (spec/vectors) as data."""

import base64
import json
from pathlib import Path

import pytest

SPEC = Path(__file__).resolve().parents[2] / "spec"
FOLDER = SPEC / "vectors"
NAMES = sorted(str(file.relative_to(FOLDER).with_suffix("")) for file in FOLDER.glob("*/*.json"))


def whole(name):
    """A file of vectors, such as `sse/framing`."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def each(name):
    """A parameter `vector`: the vectors of a file, one test each."""
    return pytest.mark.parametrize("vector", whole(name)["vectors"], ids=lambda vector: vector["name"])


def octets(vector, text, encoded):
    """Bytes that a vector gives as a text, or in base64."""
    return vector[text].encode() if text in vector else base64.b64decode(vector[encoded])
