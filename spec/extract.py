"""Extract requirements.json, and the table of README.md, from the chapters. `--check` writes nothing and fails on drift.

    python spec/extract.py              write what the chapters say
    python spec/extract.py --check      1 if a file does not say what the chapters say, or a chapter breaks a rule
    python spec/extract.py --coverage   which sentences vectors, scenarios and transcripts name, and which none does

The rules for a chapter:

- A normative sentence stands alone on its line (a list item, mostly), has exactly one BCP 14 key word, and ends in its
  identifier: `- A server MUST … . [TW-FRM-001]`. Code spans do not count; block quotes and fenced blocks explain.
- `*Applies to: server · core*` gives role and profile to what follows, up to the next such line. One sentence is
  exempted within its brackets: `[TW-FRM-001 client]`, `[TW-BRW-020 client/client]`.
- An identifier elsewhere is a reference; what it refers to exists or is withdrawn.
- An identifier that requirements.json has does not vanish: it is withdrawn in the chapter on changes.

`checks` and `mutants` of a requirement are kept as they stand in requirements.json: the conformance suite fills them.
"""  # fmt: skip
# ruff: noqa: INP001 - a script beside the text that it reads, and no package

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SPEC = Path(__file__).resolve().parent
REQUIREMENTS = SPEC / "requirements.json"
README = SPEC / "README.md"

ROLES = ("server", "client", "both")
PROFILES = ("core", "durable", "batch", "logprobs", "browser", "client")

AREAS = {
    "01-overview": "OVR",
    "02-discovery": "DSC",
    "03-framing": "FRM",
    "04-resume": "RES",
    "05-state-and-diffs": "DIF",
    "06-jobs": "JOB",
    "07-batching": "BAT",
    "08-text-generation": "GEN",
    "09-errors": "ERR",
    "10-browsers": "BRW",
    "11-security": "SEC",
    "12-deployment": "DEP",
    "13-client": "CLI",
    "14-changes": "VER",
}
"""Chapter → the area in the identifiers of its sentences."""

WITHDRAWN_HEADING = "Withdrawn identifiers"

_KEYWORD = re.compile(
    r"\b(MUST NOT|SHALL NOT|SHOULD NOT|NOT RECOMMENDED|MUST|SHALL|SHOULD|REQUIRED|RECOMMENDED|MAY|OPTIONAL)\b"
)
_ID = re.compile(r"TW-[A-Z]{3}-[0-9]{3}(?![0-9])")
_DEFINITION = re.compile(r"(?:- )?(?P<text>.+\.) \[(?P<id>TW-[A-Z]{3}-[0-9]{3})(?: (?P<override>[^\]]+))?\]")
_APPLIES = re.compile(r"\*Applies to: (?P<role>\w+) · (?P<profile>\w+)\*")
_FENCE = re.compile(r"(?P<ticks>`{3,})(?P<info>.*)")
_CODE_SPAN = re.compile(r"`[^`]*`")
_NEXT_SENTENCE = re.compile(r"[.?!] +[A-Z]")
_TABLE = re.compile(r"(<!-- table of requirements -->\n).*?(<!-- end of table -->)", re.DOTALL)


@dataclass(frozen=True)
class Fence:
    """A fenced block: its place, its language, its tags (`name=value`, or a bare name) and its text."""

    chapter: str
    line: int
    language: str
    tags: dict[str, str]
    text: str


@dataclass(frozen=True)
class Requirement:
    """One normative sentence."""

    id: str
    level: str
    role: str
    profile: str
    text: str
    chapter: str


@dataclass
class Specification:
    """What the chapters hold, and which rules they break."""

    requirements: list[Requirement] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)
    withdrawn: set[str] = field(default_factory=set)
    references: list[tuple[str, str]] = field(default_factory=list)
    """Where, and to which identifier."""
    errors: list[str] = field(default_factory=list)


def read(folder: Path = SPEC) -> Specification:
    """Read all chapters and judge them by the rules at the top of this file."""
    spec = Specification()
    for chapter in sorted(folder.glob("[0-9][0-9]-*.md")):
        read_chapter(chapter.stem, chapter.read_text(encoding="utf-8"), spec)
    defined = {requirement.id for requirement in spec.requirements}
    for where, name in spec.references:
        if name not in defined | spec.withdrawn:
            spec.errors.append(f"{where}: {name} is not defined")
    for name in sorted(defined & spec.withdrawn):
        spec.errors.append(f"{name} is withdrawn and defined")
    return spec


def read_chapter(chapter: str, text: str, spec: Specification) -> None:
    """Read one chapter into `spec`."""
    role = profile = heading = ""
    seen = {requirement.id for requirement in spec.requirements}
    for number, line in _outside_fences(chapter, text, spec):
        where = f"{chapter}:{number}"
        if line.startswith("#"):
            heading = line
        elif applies := _APPLIES.fullmatch(line):
            role, profile = applies["role"], applies["profile"]
            if role not in ROLES or profile not in PROFILES:
                spec.errors.append(f"{where}: unknown role or profile")
        elif line.startswith(">"):
            spec.references += [(where, name) for name in _ID.findall(line)]
        elif WITHDRAWN_HEADING in heading and line.startswith("|"):
            spec.withdrawn.update(_ID.findall(line))
        else:
            requirement = _sentence(where, chapter, line, role, profile, spec)
            if requirement is None:
                continue
            if requirement.id in seen:
                spec.errors.append(f"{where}: {requirement.id} stands for another sentence already")
            seen.add(requirement.id)
            spec.requirements.append(requirement)


def _outside_fences(chapter: str, text: str, spec: Specification) -> Iterator[tuple[int, str]]:
    closing, start, info, block = "", 0, "", list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if closing:
            if line != closing:
                block.append(line)
                continue
            language, *tags = info.split() or [""]
            pairs = {tag.partition("=")[0]: tag.partition("=")[2] for tag in tags}
            body = "".join(f"{row}\n" for row in block)
            spec.fences.append(Fence(chapter, start, language, pairs, body))
            spec.references += [(f"{chapter}:{start}", name) for name in _ID.findall(info)]
            closing = ""
        elif fence := _FENCE.match(line):
            closing, start, info, block = fence["ticks"], number, fence["info"], []
        else:
            yield number, line
    if closing:
        spec.errors.append(f"{chapter}:{start}: the fenced block has no end")


def _sentence(
    where: str, chapter: str, line: str, role: str, profile: str, spec: Specification
) -> Requirement | None:
    prose = _CODE_SPAN.sub("`", line)
    keywords = _KEYWORD.findall(prose)
    definition = _DEFINITION.fullmatch(line)
    if definition is None:
        if keywords:
            spec.errors.append(
                f"{where}: key word {keywords[0]} without an identifier at the end of the line"
            )
        if re.search(r"\[TW-", line):
            spec.errors.append(f"{where}: an identifier in brackets that ends no sentence")
        spec.references += [(where, name) for name in _ID.findall(line)]
        return None
    text, name = definition["text"], definition["id"]
    spec.references += [(where, other) for other in _ID.findall(text)]
    if len(keywords) != 1:
        spec.errors.append(f"{where}: {name} has {len(keywords)} key words, not one")
        return None
    if _NEXT_SENTENCE.search(_CODE_SPAN.sub("`", text)):
        spec.errors.append(f"{where}: {name} has more than one sentence on its line")
    if not name.startswith(f"TW-{AREAS.get(chapter, '?')}-"):
        spec.errors.append(f"{where}: {name} is not of this chapter's area")
    if definition["override"]:
        role, _, other = definition["override"].partition("/")
        # A client is judged as a whole, unless it offers what a profile is about.
        own = "client" if role == "client" and profile in {"core", "durable"} else profile
        profile = other or own
    if role not in ROLES or profile not in PROFILES:
        spec.errors.append(f"{where}: {name} has no known role and profile")
    return Requirement(name, keywords[0], role, profile, text, chapter)


# ---- what is written -------------------------------------------------------------------------------------------


def requirements_json(spec: Specification, old: str) -> str:
    """The text of requirements.json, with the `checks` and `mutants` of the old one."""
    known = {entry["id"]: entry for entry in json.loads(old)}
    entries = [
        {
            "id": one.id,
            "level": one.level,
            "role": one.role,
            "profile": one.profile,
            "text": one.text,
            "chapter": one.chapter,
            "checks": known.get(one.id, {}).get("checks", []),
            "mutants": known.get(one.id, {}).get("mutants", []),
        }
        for one in spec.requirements
    ]
    return json.dumps(entries, ensure_ascii=False, indent=1) + "\n"


def vanished(spec: Specification, old: str) -> list[str]:
    """Identifiers of the old requirements.json that no chapter has and none withdraws."""
    present = {one.id for one in spec.requirements} | spec.withdrawn
    return [entry["id"] for entry in json.loads(old) if entry["id"] not in present]


def readme(spec: Specification, old: str) -> str:
    """README.md with its table of requirements as it should be."""
    levels = ("MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY")
    rows = ["| chapter | area | sentences | " + " | ".join(levels) + " |", "|---" * (3 + len(levels)) + "|"]
    for chapter, area in AREAS.items():
        found = [one.level for one in spec.requirements if one.chapter == chapter]
        counts = " | ".join(str(found.count(level)) for level in levels)
        rows.append(f"| [{chapter}]({chapter}.md) | {area} | {len(found)} | {counts} |")
    found = [one.level for one in spec.requirements]
    counts = " | ".join(str(found.count(level)) for level in levels)
    rows.append(f"| all | | {len(found)} | {counts} |")
    return _TABLE.sub(lambda match: match[1] + "\n".join(rows) + "\n" + match[2], old)


def covered(spec: Specification, folder: Path = SPEC) -> dict[str, list[str]]:
    """Identifier → the vectors, scenarios and transcripts that name it."""
    found: dict[str, list[str]] = {}
    for file in sorted([*folder.glob("vectors/**/*.json"), *folder.glob("scenarios/**/*.json")]):
        for name in sorted(set(_ID.findall(file.read_text(encoding="utf-8")))):
            found.setdefault(name, []).append(str(file.relative_to(folder)))
    for fence in spec.fences:
        for name in _ID.findall(fence.tags.get("covers", "")):
            found.setdefault(name, []).append(f"transcript {fence.tags.get('transcript', '?')}")
    return found


def unseen(text: str) -> set[str]:
    """Identifiers that README.md lists as not visible on the wire."""
    section = text.partition("## Not seen on the wire")[2].partition("\n## ")[0]
    return set(_ID.findall(section))


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description="Extract requirements.json from the chapters.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on drift")
    parser.add_argument("--coverage", action="store_true", help="tell which sentences nothing exercises")
    options = parser.parse_args()
    spec = read()
    old = REQUIREMENTS.read_text(encoding="utf-8")
    problems = spec.errors + [f"{name} has vanished: withdraw it" for name in vanished(spec, old)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if options.coverage:
        _tell_coverage(spec)
        return 0
    if problems:
        return 1
    drift = False
    text = README.read_text(encoding="utf-8")
    for file, now in ((REQUIREMENTS, requirements_json(spec, old)), (README, readme(spec, text))):
        if file.read_text(encoding="utf-8") == now:
            continue
        drift = True
        if options.check:
            print(f"{file.name} is not what the chapters say: run python spec/extract.py", file=sys.stderr)
        else:
            file.write_text(now, encoding="utf-8")
            print(f"wrote {file.name}: {len(spec.requirements)} requirements")
    return int(drift and options.check)


def _tell_coverage(spec: Specification) -> None:
    found, hidden = covered(spec), unseen(README.read_text(encoding="utf-8"))
    for one in spec.requirements:
        by = ", ".join(found.get(one.id, [])) or ("not seen on the wire" if one.id in hidden else "-")
        print(f"{one.id}  {one.level:10}  {by}")
    open_ = [one for one in spec.requirements if one.level.startswith("MUST")]
    open_ = [one for one in open_ if one.id not in found and one.id not in hidden]
    print(f"{len(open_)} sentences with MUST are neither exercised nor listed as not seen on the wire")


if __name__ == "__main__":
    sys.exit(main())
