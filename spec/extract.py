"""Extract requirements.json, fingerprints.json, coverage.md and the table of README.md from the chapters, vectors and scenarios.

    python spec/extract.py              write the files
    python spec/extract.py --check      write nothing; exit with 1 if a file is out of date or a chapter breaks a rule
    python spec/extract.py --coverage   print the data that exercises each requirement

Rules for a chapter:

- A requirement is on a separate line, usually as a list item. It has exactly one BCP 14 key word and ends in its
  identifier: `- A server MUST … . [TW-FRM-001]`. Key words in code spans do not count. Block quotes and fenced blocks
  are explanations.
- `*Applies to: server · core*` sets the role and the profile of the following requirements, up to the next such line.
  A requirement can override them within its brackets: `[TW-FRM-001 client]`, `[TW-RES-001 stream]`, `[TW-BRW-020 client/client]`.
- The profile `stream` is a part of the profile `core`, and has at most 120 requirements for a server. `stream.md` has at
  most 4000 words without code, and names each of these requirements.
- An identifier at any other place, including the appendix and each README.md, is a reference to a requirement that is
  defined or withdrawn.
- An identifier in requirements.json must not disappear: the chapter on changes lists withdrawn identifiers. The numbers
  of an area have no gap, so a missing withdrawal is detected.
- The text of a requirement does not change, because people and programs refer to its identifier. fingerprints.json has a
  hash of the text with which each identifier was defined. If the meaning changes, withdraw the identifier. If the text is
  only clarified, the chapter on changes lists the identifier with the fingerprint of the new text.
- A vector, a scenario or a transcript names each requirement with MUST or MUST NOT. Otherwise README.md names a separate
  test, or the reason why no test exists.
"""  # fmt: skip
# ruff: noqa: INP001 - a script next to the chapters, not a package

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

SPEC = Path(__file__).resolve().parent
REQUIREMENTS = SPEC / "requirements.json"
README = SPEC / "README.md"
COVERAGE = SPEC / "coverage.md"
FINGERPRINTS = SPEC / "fingerprints.json"

ROLES = ("server", "client", "both")
PROFILES = ("stream", "core", "durable", "batch", "logprobs", "browser", "client", "sse")

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
    "sse": "SSE",
}
"""Area of each chapter. It is the middle part of an identifier, such as `FRM` in `TW-FRM-001`."""

WITHDRAWN_HEADING = "Withdrawn identifiers"
STREAM_LIMIT = 120
"""Maximum number of requirements of the profile `stream`."""
STREAM_WORDS = 4000
"""Maximum number of words in `stream.md` without its fenced blocks."""
CLARIFIED_HEADING = "Clarified requirements"
UNSEEN_HEADING = "Not seen on the wire"
WITHOUT_DATA_HEADING = "Observable on the wire, but without test data"
WATCHED_HEADING = "Requirements with another kind of test"

# Letters before or after a key word make it a part of another word. An underscore does not, because it is markdown
# emphasis.
_KEYWORD = re.compile(
    r"(?<![A-Za-z])(MUST NOT|SHALL NOT|SHOULD NOT|NOT RECOMMENDED|MUST|SHALL|SHOULD|REQUIRED|RECOMMENDED|MAY|OPTIONAL)"
    r"(?![A-Za-z])"
)
_ID = re.compile(r"TW-[A-Z]{3}-[0-9]{3}(?![0-9])")
_DEFINITION = re.compile(r"(?:- )?(?P<text>.+\.) \[(?P<id>TW-[A-Z]{3}-[0-9]{3})(?: (?P<override>[^\]]+))?\]")
_CLARIFIED = re.compile(r"\| (?P<id>TW-[A-Z]{3}-[0-9]{3}) \| `(?P<fingerprint>[0-9a-f]{12})` \| .+ \|")
_APPLIES = re.compile(r"\*Applies to: (?P<role>\w+) · (?P<profile>\w+)\*")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"(?P<ticks>`{3,})(?P<info>.*)")
_CODE_SPAN = re.compile(r"`[^`]*`")
_NEXT_SENTENCE = re.compile(r"[.?!] +[A-Z`]")
_TABLE = re.compile(r"(<!-- table of requirements -->\n).*?(<!-- end of table -->)", re.DOTALL)


@dataclass(frozen=True)
class Fence:
    """A fenced block: its position, language, tags (`name=value` or a bare name) and text."""

    chapter: str
    line: int
    language: str
    tags: dict[str, str]
    text: str


@dataclass(frozen=True)
class Requirement:
    """One requirement of the specification."""

    id: str
    level: str
    role: str
    profile: str
    text: str
    chapter: str


@dataclass
class Specification:
    """The requirements, fenced blocks and references in the chapters, and the violations of the rules for chapters."""

    requirements: list[Requirement] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)
    withdrawn: set[str] = field(default_factory=set)
    clarified: dict[str, str] = field(default_factory=dict)
    """Fingerprint of the current text of each clarified requirement."""
    references: list[tuple[str, str]] = field(default_factory=list)
    """Position and identifier of each reference."""
    errors: list[str] = field(default_factory=list)


def read(folder: Path = SPEC) -> Specification:
    """Read all chapters, and check that they follow the rules that the module docstring lists."""
    spec = Specification()
    for chapter in [*sorted(folder.glob("[0-9][0-9]-*.md")), *folder.glob("sse.md")]:
        read_chapter(chapter.stem, chapter.read_text(encoding="utf-8"), spec)
    for page in folder.glob("stream.md"):
        prose = "\n".join(
            line for _, line in _outside_fences(page.stem, page.read_text(encoding="utf-8"), spec)
        )
        spec.errors += stream_errors(spec, prose)
    for page in [
        *sorted(folder.glob("A-*.md")),
        *folder.glob("stream.md"),
        *folder.glob("README.md"),
        *sorted(folder.glob("*/README.md")),
    ]:
        spec.references += [(page.name, name) for name in _ID.findall(page.read_text(encoding="utf-8"))]
    defined = {requirement.id for requirement in spec.requirements}
    for where, name in spec.references:
        if name not in defined | spec.withdrawn:
            spec.errors.append(f"{where}: {name} is not defined")
    for name in sorted(defined & spec.withdrawn):
        spec.errors.append(f"{name} is withdrawn and defined")
    spec.errors += [
        f"{name} is neither defined nor withdrawn" for name in missing_identifiers(defined | spec.withdrawn)
    ]
    return spec


def stream_errors(spec: Specification, prose: str) -> list[str]:
    """Return the violations of the rules for the profile `stream`. `prose` is `stream.md` without its fenced blocks."""
    own = {one.id for one in spec.requirements if one.profile == "stream"}
    named = set(_ID.findall(prose))
    errors = [f"stream.md does not name {name}" for name in sorted(own - named)]
    if len(own) > STREAM_LIMIT:
        errors.append(f"the profile stream has {len(own)} requirements; the limit is {STREAM_LIMIT}")
    if (words := len(_LINK.sub(r"\1", prose).split())) > STREAM_WORDS:
        errors.append(f"stream.md has {words} words without code; the limit is {STREAM_WORDS}")
    return errors


def missing_identifiers(names: set[str]) -> list[str]:
    """Return the identifiers that are missing below the highest number of each area, unless they are withdrawn."""
    greatest: dict[str, int] = {}
    for name in names:
        greatest[name[:-3]] = max(greatest.get(name[:-3], 0), int(name[-3:]))
    every = {f"{area}{number:03}" for area, top in greatest.items() for number in range(1, top + 1)}
    return sorted(every - names)


def read_chapter(chapter: str, text: str, spec: Specification) -> None:
    """Read one chapter into `spec`."""
    role = profile = heading = ""
    seen = {requirement.id for requirement in spec.requirements}
    for number, line in _outside_fences(chapter, text, spec):
        where = f"{chapter}:{number}"
        if line.startswith("#"):
            heading = line
            if _KEYWORD.search(_CODE_SPAN.sub("`", line)):
                spec.errors.append(f"{where}: a key word in a heading")
        elif applies := _APPLIES.fullmatch(line):
            role, profile = applies["role"], applies["profile"]
            if role not in ROLES or profile not in PROFILES:
                spec.errors.append(f"{where}: unknown role or profile")
        elif line.startswith(">"):
            spec.references += [(where, name) for name in _ID.findall(line)]
        elif WITHDRAWN_HEADING in heading and line.startswith("|"):
            spec.withdrawn.update(_ID.findall(line))
        elif CLARIFIED_HEADING in heading and (row := _CLARIFIED.match(line)):
            spec.clarified[row["id"]] = row["fingerprint"]
            spec.references.append((where, row["id"]))
        else:
            requirement = _requirement(where, chapter, line, role, profile, spec)
            if requirement is None:
                continue
            if requirement.id in seen:
                spec.errors.append(
                    f"{where}: {requirement.id} is already used by another requirement; take the next free number"
                )
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
            spec.references += [(f"{chapter}:{start}", name) for name in _ID.findall(info + body)]
            closing = ""
        elif fence := _FENCE.match(line):
            closing, start, info, block = fence["ticks"], number, fence["info"], []
        else:
            yield number, line
    if closing:
        spec.errors.append(
            f"{chapter}:{start}: the fenced block has no end; close it with the same number of backticks"
        )


def _requirement(
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
            spec.errors.append(
                f"{where}: an identifier in brackets at a place other than the end of a requirement"
            )
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
        first, _, other = definition["override"].partition("/")
        role, profile = (
            (role, first) if first in PROFILES and not other and first != "client" else (first, profile)
        )
        # A requirement for clients is in the profile `client`, unless it belongs to an optional feature.
        own = "client" if role == "client" and profile in {"stream", "core", "durable"} else profile
        profile = other or own
    if role not in ROLES or profile not in PROFILES:
        spec.errors.append(f"{where}: {name} has no known role and profile")
    return Requirement(name, keywords[0], role, profile, text, chapter)


# ---- output ---------------------------------------------------------------------------------------------------


def requirements_json(spec: Specification) -> str:
    """Return the text of requirements.json."""
    entries = [asdict(one) for one in spec.requirements]
    return json.dumps(entries, ensure_ascii=False, indent=1) + "\n"


def vanished(spec: Specification, old: str) -> list[str]:
    """Return the identifiers in the old requirements.json that are neither defined nor withdrawn now."""
    present = {one.id for one in spec.requirements} | spec.withdrawn
    return [entry["id"] for entry in json.loads(old) if entry["id"] not in present]


def fingerprint(requirement: Requirement) -> str:
    """Return a hash of a requirement's key word, role, profile and text, as 12 hex digits.

    The profile `stream` counts as `core`, because a server that meets `core` meets a requirement of either.
    """
    profile = "core" if requirement.profile == "stream" else requirement.profile
    parts = (requirement.level, requirement.role, profile, requirement.text)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def changed_texts(spec: Specification, known: dict[str, str]) -> list[str]:
    """Return an error message for each requirement whose text differs from the one with which it was defined."""
    errors = []
    for one in spec.requirements:
        now = fingerprint(one)
        before = spec.clarified.get(one.id, known.get(one.id, now))
        if now != before:
            errors.append(
                f"{one.id}: the text has changed. If the meaning has changed, withdraw the identifier and take the next free "
                f"one. If the text is only clarified, list it in chapter 14 under {CLARIFIED_HEADING!r} with the fingerprint {now}"
            )
    return errors


def fingerprints_json(spec: Specification, known: dict[str, str]) -> str:
    """Return the text of fingerprints.json: the known fingerprints, and those of new requirements."""
    every = {one.id: fingerprint(one) for one in spec.requirements} | known
    return json.dumps(dict(sorted(every.items())), indent=1) + "\n"


def readme(spec: Specification, old: str) -> str:
    """Return the text of README.md with an updated table of requirements."""
    levels = ("MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY")
    rows = [
        "| chapter | area | requirements | " + " | ".join(levels) + " |",
        "|---" * (3 + len(levels)) + "|",
    ]
    for chapter, area in AREAS.items():
        found = [one.level for one in spec.requirements if one.chapter == chapter]
        counts = " | ".join(str(found.count(level)) for level in levels)
        rows.append(f"| [{chapter}]({chapter}.md) | {area} | {len(found)} | {counts} |")
    found = [one.level for one in spec.requirements]
    counts = " | ".join(str(found.count(level)) for level in levels)
    rows.append(f"| all | | {len(found)} | {counts} |")
    return _TABLE.sub(lambda match: match[1] + "\n".join(rows) + "\n" + match[2], old)


def identifiers(text: str) -> list[str]:
    """Return the identifiers in a text."""
    return _ID.findall(text)


def covered(spec: Specification, folder: Path = SPEC) -> dict[str, list[str]]:
    """Map identifiers to the vectors, scenarios and transcripts that exercise them, such as `vectors sse/framing ×3`.

    Pending transcripts do not count.
    """
    found: dict[str, list[str]] = {}
    for kind in ("vectors", "scenarios"):
        for file in sorted((folder / kind).glob("**/*.json")):
            name = str(file.relative_to(folder / kind).with_suffix(""))
            times = Counter(_required(json.loads(file.read_text(encoding="utf-8"))))
            for one, count in times.items():
                found.setdefault(one, []).append(f"{kind} {name} ×{count}")
    for fence in (fence for fence in spec.fences if "pending" not in fence.tags):
        for one in identifiers(fence.tags.get("covers", "")):
            found.setdefault(one, []).append(f"transcript {fence.tags.get('transcript', '?')}")
    return found


def _required(node: object) -> Iterator[str]:
    """Yield the identifiers in every `requirements` member of a file, at any depth."""
    if isinstance(node, list):
        for child in node:
            yield from _required(child)
    elif isinstance(node, dict):
        for name, child in node.items():
            if name == "requirements" and isinstance(child, list):
                yield from child
            else:
                yield from _required(child)


def reasons(text: str, heading: str) -> dict[str, str]:
    """Read a table of README.md: map each identifier in its first column to the reason in its second column."""
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = (line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("| TW-"))
    return {name: why for names, why in rows for name in identifiers(names)}


def coverage(spec: Specification, text: str) -> tuple[str, list[str]]:
    """Return the text of coverage.md, and the requirements that have neither test data nor an entry in README.md."""
    found = covered(spec)
    for name, test in reasons(text, WATCHED_HEADING).items():
        found.setdefault(name, []).append(test)
    unobservable, without = reasons(text, UNSEEN_HEADING), reasons(text, WITHOUT_DATA_HEADING)
    musts = [one for one in spec.requirements if one.level.startswith("MUST")]
    lines, uncovered = list[str](), list[str]()
    counts = Counter[str]()
    for chapter in AREAS:
        lines += [f"## {chapter}", "", "| requirement | role | exercised by |", "|---|---|---|"]
        for one in (one for one in musts if one.chapter == chapter):
            data = found.get(one.id, [])
            kinds = {label.split()[0] for label in data}
            counts.update(kinds)
            if data:
                counts["alone"] += not {"vectors", "scenarios", "transcript"} & kinds
                by = "; ".join(data)
            elif one.id in unobservable:
                by, counts["unobservable"] = (
                    f"– not seen on the wire: {unobservable[one.id]}",
                    counts["unobservable"] + 1,
                )
            elif one.id in without:
                by, counts["without"] = f"– {without[one.id]}", counts["without"] + 1
            else:
                by = "– **nothing**"
                uncovered.append(one.id)
            lines.append(f"| {one.id} | {one.role} | {by} |")
        lines.append("")
    top = [
        "# Coverage of the requirements",
        "",
        "`extract.py` generates this file. It has a row for each requirement with MUST or MUST NOT. `×n` is the number of vectors or scenarios.",
        "The reasons are in README.md.",
        "",
        "| | requirements |",
        "|---|---|",
        f"| all | {len(musts)} |",
        f"| named by vectors | {counts['vectors']} |",
        f"| named by scenarios | {counts['scenarios']} |",
        f"| named by transcripts | {counts['transcript']} |",
        f"| judged in every transcript | {counts['every']} |",
        f"| without test data, but judged in every transcript or by a separate test | {counts['alone']} |",
        f"| observable on the wire, but without test data | {counts['without']} |",
        f"| not seen on the wire | {counts['unobservable']} |",
        "",
    ]
    return "\n".join([*top, *lines]), uncovered


def main() -> int:
    """Write the files, or compare them with the chapters; return the exit code."""
    parser = argparse.ArgumentParser(description="Extract requirements.json from the chapters.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    parser.add_argument(
        "--coverage", action="store_true", help="print the data that exercises each requirement"
    )
    options = parser.parse_args()
    spec = read()
    old, text = REQUIREMENTS.read_text(encoding="utf-8"), README.read_text(encoding="utf-8")
    known: dict[str, str] = json.loads(FINGERPRINTS.read_text()) if FINGERPRINTS.exists() else {}
    covers, uncovered = coverage(spec, text)
    broken = spec.errors + [
        f"{name} has disappeared: list it as withdrawn in chapter 14" for name in vanished(spec, old)
    ]
    broken += changed_texts(spec, known)
    problems = [
        *broken,
        *(
            f"{name}: no vector, scenario or transcript refers to this requirement, and README.md gives no reason"
            for name in uncovered
        ),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    if options.coverage:
        print(covers)
    if options.coverage or broken:
        return int(bool(problems))
    drift = False
    now = {
        REQUIREMENTS: requirements_json(spec),
        README: readme(spec, text),
        COVERAGE: covers,
        FINGERPRINTS: fingerprints_json(spec, known),
    }
    for file, written in now.items():
        if file.exists() and file.read_text(encoding="utf-8") == written:
            continue
        drift = True
        if options.check:
            print(f"{file.name} is out of date: run python spec/extract.py", file=sys.stderr)
        else:
            file.write_text(written, encoding="utf-8")
            print(f"wrote {file.name}: {len(spec.requirements)} requirements")
    return int(bool(problems) or (drift and options.check))


if __name__ == "__main__":
    sys.exit(main())
