"""Machine-readable parts of the specification: requirements, JSON Schemas and the table of problem codes.

The files come from the folder `spec/`, which is inside an installed package or at the root of a checkout. This module
does not depend on any implementation of the protocol.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
"""Identifier of the draft of JSON Schema that the specification uses."""


PROFILE_PARTS: Final = {"core": ("stream", "core")}
"""Profiles that include the requirements of other profiles. Every other profile has only its own requirements."""


class Requirement(NamedTuple):
    """Normative requirement of the specification, with its id and keyword."""

    id: str
    level: str
    """Keyword of BCP 14, such as MUST or SHOULD."""
    text: str
    role: str = "both"
    profile: str = "core"
    chapter: str = ""

    @property
    def binds(self) -> bool:
        """Whether a server or client must meet the requirement to be conformant. False for SHOULD and MAY."""
        return self.level in {"MUST", "MUST NOT", "SHALL", "SHALL NOT", "REQUIRED"}

    def is_in(self, profile: str) -> bool:
        """Whether a server of this profile must satisfy the requirement. A profile includes the requirements of its parts."""
        return self.profile in PROFILE_PARTS.get(profile, (profile,))


class Code(NamedTuple):
    """Status and retryability of a problem code, from the registry in section 9.2."""

    status: int
    retryable: bool


@cache
def folder() -> Path:
    """Return the folder of the specification, inside the installed package or in the checkout.

    Raises:
        FileNotFoundError: Neither folder contains a specification.
    """
    here = Path(__file__).resolve()
    for place in (here.parent / "spec", *(parent / "spec" for parent in here.parents[3:4])):
        if (place / "requirements.json").is_file():
            return place
    raise FileNotFoundError(
        "no specification found in the package or in a checkout around it; reinstall tidewire[conformance]"
    )


@cache
def requirements() -> dict[str, Requirement]:
    """Return all requirements by id."""
    entries = json.loads((folder() / "requirements.json").read_text(encoding="utf-8"))
    return {
        entry["id"]: Requirement(**{name: entry[name] for name in Requirement._fields}) for entry in entries
    }


@cache
def problem_codes() -> dict[str, Code]:
    """Return the registry of problem codes, parsed from the table in section 9.2."""
    text = (folder() / "09-errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (yes|no) \|", text, re.MULTILINE)
    return {code: Code(int(status), retryable == "yes") for code, status, retryable in rows}


@cache
def validator(name: str, part: str = "") -> Draft202012Validator:
    """Return a JSON Schema validator for a schema of the specification.

    Args:
        name: File name without `.schema.json`.
        part: Name of a definition in `$defs`. By default, the validator uses the whole schema.
    """
    pointer = f"#/$defs/{part}" if part else ""
    schema = {"$ref": f"{name}.schema.json{pointer}"}
    return Draft202012Validator(schema, registry=_registry())


def schema(file: str) -> dict[str, Any]:
    """Return a schema of the specification, for example of the file `job.schema.json`."""
    found: dict[str, Any] = _registry().contents(file)
    return found


@cache
def _registry() -> Registry[Any]:
    found = (
        json.loads(file.read_text(encoding="utf-8"))
        for file in sorted((folder() / "schema").glob("*.schema.json"))
    )
    return Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in found)
