"""The specification as data: its sentences, its schemas, its scenarios. Nothing here knows an implementation."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from referencing import Registry, Resource


class Sentence(NamedTuple):
    """One normative sentence."""

    id: str
    level: str
    """Its key word of BCP 14."""
    text: str


@cache
def folder() -> Path:
    """Where the specification lies: beside the installed package, or in the checkout.

    Raises:
        FileNotFoundError: It is in neither place.
    """
    here = Path(__file__).resolve()
    for place in (here.parents[1] / "spec", here.parents[4] / "spec"):
        if (place / "requirements.json").is_file():
            return place
    raise FileNotFoundError("the specification is neither beside the package nor in a checkout around it")


@cache
def sentences() -> dict[str, Sentence]:
    """Every normative sentence by its identifier."""
    entries = json.loads((folder() / "requirements.json").read_text(encoding="utf-8"))
    return {entry["id"]: Sentence(entry["id"], entry["level"], entry["text"]) for entry in entries}


def validator(name: str, part: str = "") -> Draft202012Validator:
    """A validator of one schema.

    Args:
        name: Of the file, without `.schema.json`.
        part: A name below its `$defs`; the whole schema by default.
    """
    pointer = f"#/$defs/{part}" if part else ""
    schema = {"$ref": f"{name}.schema.json{pointer}"}
    return Draft202012Validator(schema, registry=_registry())


@cache
def _registry() -> Registry[Any]:
    found = (
        json.loads(file.read_text(encoding="utf-8"))
        for file in sorted((folder() / "schema").glob("*.schema.json"))
    )
    return Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in found)
