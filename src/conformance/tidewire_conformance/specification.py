"""The specification as data: its sentences, its schemas, its table of problems, its scenarios.

Nothing here knows an implementation. The files are those of `spec/`: beside this module in an installed package, and
at the root of a checkout.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource


class Requirement(NamedTuple):
    """One normative sentence."""

    id: str
    level: str
    """Its key word of BCP 14."""
    text: str
    role: str = "both"
    profile: str = "core"
    chapter: str = ""

    @property
    def binds(self) -> bool:
        """Whether a server that breaks it does not conform; of another one it is only worth knowing."""
        return self.level in {"MUST", "MUST NOT", "SHALL", "SHALL NOT", "REQUIRED"}


class Code(NamedTuple):
    """One row of the registry of problems (section 9.2)."""

    status: int
    retryable: bool


@cache
def folder() -> Path:
    """Where the specification lies: beside the installed package, or in the checkout.

    Raises:
        FileNotFoundError: It is in neither place.
    """
    here = Path(__file__).resolve()
    for place in (here.parent / "spec", *(parent / "spec" for parent in here.parents[3:4])):
        if (place / "requirements.json").is_file():
            return place
    raise FileNotFoundError("the specification is neither beside the package nor in a checkout around it")


@cache
def requirements() -> dict[str, Requirement]:
    """Every normative sentence by its identifier."""
    entries = json.loads((folder() / "requirements.json").read_text(encoding="utf-8"))
    return {
        entry["id"]: Requirement(**{name: entry[name] for name in Requirement._fields}) for entry in entries
    }


@cache
def unseen() -> dict[str, str]:
    """Sentences that no test from outside can judge, and why (README.md)."""
    text = (folder() / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## Not seen on the wire\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (TW-[^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return {name: why for names, why in rows for name in re.findall(r"TW-[A-Z]{3}-\d{3}", names)}


@cache
def problem_codes() -> dict[str, Code]:
    """The registry of problems, as the table of section 9.2 has it."""
    text = (folder() / "09-errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (yes|no) \|", text, re.MULTILINE)
    return {code: Code(int(status), retryable == "yes") for code, status, retryable in rows}


@cache
def validator(name: str, part: str = "") -> Draft202012Validator:
    """A validator of one schema.

    Args:
        name: Of the file, without `.schema.json`.
        part: A name below its `$defs`; the whole schema by default.
    """
    pointer = f"#/$defs/{part}" if part else ""
    schema = {"$ref": f"{name}.schema.json{pointer}"}
    return Draft202012Validator(schema, registry=_registry())


def misfit(name: str, value: Any) -> str:
    """Where and why a value does not fit a schema of the specification; empty where it does."""
    error = best_match(validator(name).iter_errors(value))
    return "" if error is None else f"at {error.json_path}: {error.message[:300]}"


@cache
def _registry() -> Registry[Any]:
    found = (
        json.loads(file.read_text(encoding="utf-8"))
        for file in sorted((folder() / "schema").glob("*.schema.json"))
    )
    return Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in found)
