"""Lint of the specification: requirements, schemas, OpenAPI file, examples and transcripts are consistent."""

import functools
import json
import math
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from support.spec_document import (
    BOUND,
    SCHEMA_OF_EVENT,
    SCHEMAS,
    SPEC,
    breaches,
    document,
    events_of,
    exchanges,
    extract,
)
from support.tables import for_each_case
from tidewire.following.follower import Cause, Fatal, Follower, Reconnect
from tidewire.protocol import strict_json
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.diff_shapes import DiffError, UnknownOpError
from tidewire.protocol.document.digests import IntegrityError, digest, text_check
from tidewire.protocol.problems import REGISTRY as PROBLEMS

TRACEABILITY = json.loads(
    (SPEC.parent / "src/conformance/tidewire_conformance/traceability.json").read_text(encoding="utf-8")
)
TRANSCRIPTS = [fence for fence in document.fences if "transcript" in fence.tags]


def location(fence):
    return f"{fence.chapter}:{fence.line}"


# ---- requirements ----------------------------------------------------------------------------------------------


def test_chapters_have_no_lint_errors():
    assert document.errors == []


def test_generated_requirements_and_readme_are_up_to_date():
    run = subprocess.run(
        [sys.executable, str(SPEC / "extract.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_chapters_and_areas_match_one_to_one():
    chapters = [file.stem for file in sorted(SPEC.glob("[0-9][0-9]-*.md"))]
    assert [*chapters, "sse"] == list(extract.AREAS)


def test_requirements_without_data_exist_and_have_one_reason():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    unseen = extract.reasons(text, extract.UNSEEN_HEADING)
    without = extract.reasons(text, extract.WITHOUT_DATA_HEADING)
    assert unseen
    assert without
    assert not unseen.keys() & without.keys()
    assert unseen.keys() | without.keys() <= {one.id for one in document.requirements}
    for heading in (extract.UNSEEN_HEADING, extract.WITHOUT_DATA_HEADING, extract.WATCHED_HEADING):
        listed = extract.identifiers(text.partition(f"## {heading}\n")[2].partition("\n## ")[0])
        assert len(listed) == len(set(listed)), "a requirement is listed twice"


JUDGED_BY_A_TEST = {
    "test_endpoint_descriptions_are_correct": ["TW-DSC-017", "TW-DSC-019", "TW-DSC-022"],
    "test_a_slow_reader_that_makes_progress_is_not_closed": ["TW-DIF-068"],
    "test_event_streams_conform_to_the_profile_unless_the_server_is_faulty": [
        "TW-SSE-001",
        "TW-SSE-002",
        "TW-SSE-003",
        "TW-SSE-004",
        "TW-SSE-007",
        "TW-SSE-008",
    ],
    "test_change_of_many_ops_is_split": ["TW-DSC-026", "TW-DIF-071"],
    "test_a_stream_whose_log_fails_sends_goaway_and_is_logged_once": ["TW-DEP-005"],
    "test_split_characters_are_never_shown_as_replacement_characters": ["TW-GEN-014", "TW-GEN-015"],
    "test_vocabulary_hash_depends_only_on_its_content": ["TW-GEN-038", "TW-GEN-039"],
    "test_token_text_is_decoded_from_the_byte_level_alphabet": ["TW-GEN-042"],
    "test_the_reference_server_passes_all_checks": ["TW-DIF-032", "TW-DSC-015"],
    "test_vocabulary_hash_changes_with_the_vocabulary": ["TW-GEN-040"],
    "test_page_closes_its_stream_at_done": ["TW-BRW-001", "TW-BRW-002", "TW-BRW-003", "TW-BRW-004"],
}
"""Map tests to the requirements that README.md assigns to a test; the specification names no tests."""


def test_tests_that_judge_a_requirement_exist():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    judged = extract.reasons(text, extract.WATCHED_HEADING)
    own = {name for name, row in judged.items() if not row.startswith("every transcript: ")}
    assert own == {name for names in JUDGED_BY_A_TEST.values() for name in names}
    files = [file for file in (SPEC.parent / "tests").rglob("test_*.py") if file != Path(__file__)]
    tests = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [test for test in JUDGED_BY_A_TEST if f"def {test}(" not in tests] == []


def test_requirements_covered_by_data_have_no_reason():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    found = extract.covered(document) | extract.reasons(text, extract.WATCHED_HEADING)
    for heading in (extract.UNSEEN_HEADING, extract.WITHOUT_DATA_HEADING):
        assert not extract.reasons(text, heading).keys() & found.keys()


def parse_chapter(*lines, chapter="03-framing"):
    spec = extract.Specification()
    extract.read_chapter(chapter, "\n".join(["*Applies to: server · core*", *lines, ""]), spec)
    return spec


REQUIREMENT = "- A server MUST do it. [TW-FRM-001]"


def test_requirement_is_parsed_with_level_role_and_profile():
    (one,) = parse_chapter(REQUIREMENT).requirements
    assert one == extract.Requirement(
        "TW-FRM-001", "MUST", "server", "core", "A server MUST do it.", "03-framing"
    )


@pytest.mark.parametrize(
    ("override", "role", "profile"),
    [("client", "client", "client"), ("both", "both", "core"), ("client/browser", "client", "browser")],
)
def test_word_after_the_identifier_overrides_role_and_profile(override, role, profile):
    (one,) = parse_chapter(f"- A page MUST NOT do it. [TW-FRM-001 {override}]").requirements
    assert (one.level, one.role, one.profile) == ("MUST NOT", role, profile)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("A server MUST do it.", "key word MUST without an identifier"),
        ("| a server SHOULD do it |", "key word SHOULD without an identifier"),
        ("A server _MUST_ do it.", "key word MUST without an identifier"),
        ("## What a server MUST do", "a key word in a heading"),
        ("- A server does it. [TW-FRM-001]", "0 key words"),
        ("- A server MUST do it and MAY do that. [TW-FRM-001]", "2 key words"),
        ("- A server is good. It MUST do it. [TW-FRM-001]", "more than one sentence"),
        ("- A server MUST do it. `it` is good. [TW-FRM-001]", "more than one sentence"),
        ("- A server MUST do it [TW-FRM-001].", "key word MUST without an identifier"),
        ("- A server MUST do it. [TW-RES-001]", "not of this chapter's area"),
        ("- A server MUST do it. [TW-FRM-001 nobody]", "no known role and profile"),
        ("*Applies to: server · everything*", "unknown role or profile"),
        ("```json", "has no end"),
    ],
)
def test_violation_of_a_writing_rule_is_reported(line, complaint):
    (error,) = parse_chapter(line).errors[:1]
    assert complaint in error


def test_duplicate_identifier_is_reported():
    assert "is already used by another requirement" in parse_chapter(REQUIREMENT, REQUIREMENT).errors[0]


def test_key_words_in_code_quotes_and_fences_are_not_normative():
    assert parse_chapter("`MUST`", "> It MUST.", "```", "MUST", "```", "it must, it may").errors == []


def test_reference_to_an_unknown_requirement_is_reported(tmp_path):
    (tmp_path / "03-framing.md").write_text("As TW-FRM-777 says.\n", encoding="utf-8")
    assert extract.read(tmp_path).errors == ["03-framing:1: TW-FRM-777 is not defined"]


def test_unknown_references_in_fences_appendix_and_readme_are_reported(tmp_path):
    (tmp_path / "03-framing.md").write_text(
        "```http covers=TW-FRM-771\n# TW-FRM-772\n```\n", encoding="utf-8"
    )
    (tmp_path / "A-appendix.md").write_text("As TW-FRM-773 says.\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("| TW-FRM-774 | why |\n", encoding="utf-8")
    identifiers = [error.split()[1] for error in extract.read(tmp_path).errors]
    assert identifiers == ["TW-FRM-771", "TW-FRM-772", "TW-FRM-773", "TW-FRM-774"]


STREAM_REQUIREMENT = "*Applies to: server · core*\n- A server MUST do it. [TW-FRM-001 stream]\n"


def test_word_in_the_brackets_overrides_the_role_or_the_profile():
    found = parse_chapter(
        "*Applies to: server · core*",
        *(f"- One MUST do it. [TW-FRM-{each}]" for each in ("001 stream", "002 client", "003 both/stream")),
    )
    assert [(one.role, one.profile) for one in found.requirements] == [
        ("server", "stream"),
        ("client", "client"),
        ("both", "stream"),
    ]


def test_move_into_the_profile_stream_changes_no_fingerprint():
    in_core, in_stream = (
        parse_chapter(
            "*Applies to: server · core*", f"- A server MUST do it. [TW-FRM-001{word}]"
        ).requirements[0]
        for word in ("", " stream")
    )
    assert extract.fingerprint(in_core) == extract.fingerprint(in_stream)


@pytest.mark.parametrize(
    ("page", "errors"),
    [
        ("Do it (TW-FRM-001).", []),
        ("Do it.", ["stream.md does not name TW-FRM-001"]),
        ("Do it.\n```\nTW-FRM-001\n```", ["stream.md does not name TW-FRM-001"]),
        ("TW-FRM-001 " + "word " * (extract.STREAM_WORDS - 1) + "\n```\nfour words of code\n```", []),
        (
            "TW-FRM-001 " + "[word](a%20b) " * extract.STREAM_WORDS,
            ["stream.md has 4001 words without code; the limit is 4000"],
        ),
    ],
)
def test_page_of_the_profile_stream_names_its_requirements_in_few_words(tmp_path, page, errors):
    (tmp_path / "03-framing.md").write_text(STREAM_REQUIREMENT, encoding="utf-8")
    (tmp_path / "stream.md").write_text(page + "\n", encoding="utf-8")
    assert extract.read(tmp_path).errors == errors


def test_the_profile_stream_has_a_limited_number_of_requirements(monkeypatch):
    spec = parse_chapter("*Applies to: server · core*", "- A server MUST do it. [TW-FRM-001 stream]")
    monkeypatch.setattr(extract, "STREAM_LIMIT", 1)
    assert extract.stream_errors(spec, "TW-FRM-001") == []
    monkeypatch.setattr(extract, "STREAM_LIMIT", 0)
    assert extract.stream_errors(spec, "TW-FRM-001") == [
        "the profile stream has 1 requirements; the limit is 0"
    ]


def test_gap_in_the_identifiers_is_reported(tmp_path):
    text = "*Applies to: server · core*\n- A server MUST do it. [TW-FRM-003]\n"
    (tmp_path / "03-framing.md").write_text(text, encoding="utf-8")
    (tmp_path / "14-changes.md").write_text("## Withdrawn identifiers\n\n| TW-FRM-001 |\n", encoding="utf-8")
    assert extract.read(tmp_path).errors == ["TW-FRM-002 is neither defined nor withdrawn"]


def test_withdrawn_requirement_may_be_referenced_but_not_defined(tmp_path):
    (tmp_path / "14-changes.md").write_text("## Withdrawn identifiers\n\n| TW-FRM-001 |\n", encoding="utf-8")
    (tmp_path / "03-framing.md").write_text("As TW-FRM-001 said.\n", encoding="utf-8")
    assert extract.read(tmp_path).errors == []
    text = f"*Applies to: server · core*\n{REQUIREMENT}\n"
    (tmp_path / "03-framing.md").write_text(text, encoding="utf-8")
    assert extract.read(tmp_path).errors == ["TW-FRM-001 is withdrawn and defined"]


def test_removed_identifier_is_reported_unless_withdrawn():
    spec = parse_chapter(REQUIREMENT)
    old = '[{"id": "TW-FRM-001"}, {"id": "TW-FRM-002"}, {"id": "TW-FRM-003"}]'
    spec.withdrawn.add("TW-FRM-003")
    assert extract.vanished(spec, old) == ["TW-FRM-002"]


def test_requirement_without_coverage_is_reported_unless_it_has_a_reason():
    spec = parse_chapter("- A server MUST do it. [TW-FRM-999]", "- A server MAY do it. [TW-FRM-998]")
    text, unexplained = extract.coverage(spec, "")
    assert unexplained == ["TW-FRM-999"]
    assert "| TW-FRM-999 | server | – **nothing** |" in text
    readme = f"## {extract.WITHOUT_DATA_HEADING}\n\n| TW-FRM-999, TW-FRM-998 | it is late |\n"
    text, unexplained = extract.coverage(spec, readme)
    assert unexplained == []
    assert "| TW-FRM-999 | server | – it is late |" in text


def test_requirements_file_has_no_members_of_the_suite():
    (entry,) = json.loads(extract.requirements_json(parse_chapter(REQUIREMENT)))
    assert [*entry] == ["id", "level", "role", "profile", "text", "chapter"]


def test_specification_names_no_check_and_no_test():
    files = [file for file in SPEC.rglob("*") if file.suffix in {".md", ".json", ".yaml"}]
    names = {name for file in files for name in re.findall(r"\btest_\w+", file.read_text(encoding="utf-8"))}
    assert names == set()
    checks = {check for trace in TRACEABILITY.values() for check in trace["checks"]}
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert checks
    assert [check for check in checks if check in text] == []


def test_references_between_sections_exist():
    texts = {file.stem: file.read_text(encoding="utf-8") for file in SPEC.glob("[0-9][0-9]-*.md")}
    sections = {
        number
        for text in texts.values()
        for number in re.findall(r"^##? (\d+(?:\.\d+)?)", text, re.MULTILINE)
    }
    for chapter, text in texts.items():
        named = re.findall(r"(?:section|chapter) (\d+(?:\.\d+)?)", text)
        assert set(named) <= sections, chapter


@pytest.mark.parametrize(
    ("section", "row"),
    [("## 1.6", r"^\| (\w+) \| (\w+) \| [^|]+ \|$"), ("## 1.7", r"^\| (\w+) \| [^|]+ \| (\w+) \|$")],
)
def test_state_diagrams_match_their_tables(section, row):
    text = (SPEC / "01-overview.md").read_text(encoding="utf-8").partition(section)[2].partition("\n## ")[0]
    table = {(a, b) for a, b in re.findall(row, text, re.MULTILINE) if a not in {"from", "state", "any"}}
    drawn = set(re.findall(r"^  (\w+) --> (\w+) : ", text, re.MULTILINE))
    assert table == drawn


def test_problem_registry_matches_the_table_in_the_chapter():
    text = (SPEC / "09-errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (yes|no) \| (–|\d+) \| (.+) \|$", text, re.MULTILINE)
    table = {code: (int(status), retry == "yes", wait, title) for code, status, retry, wait, title in rows}
    assert table == {
        code: (
            kind.status,
            kind.retryable,
            "–" if kind.retry_after_ms is None else str(kind.retry_after_ms),
            kind.title,
        )
        for code, kind in PROBLEMS.items()
    }
    explained = re.findall(r"^\| `(\w+)` \| [^|]*[a-z][^|]* \|$", text, re.MULTILINE)
    assert sorted(explained) == sorted([*PROBLEMS, *(set(explained) - set(PROBLEMS))])


# ---- schemas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_valid_and_accepts_its_examples(name):
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schema["$id"] == f"{name}.schema.json"
    assert schema["examples"]
    for example in schema["examples"]:
        assert breaches(name, example) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("event-id", "01-1"),
        ("event-id", "0-1"),
        ("pointer", "a"),
        ("pointer", "/~2"),
        ("diff", 7),
        ("diff", {"on": 3}),
        ("op", ["a", "/x"]),
        ("op", ["d", ""]),
        ("op", ["t", "/x", 1.5]),
        ("op", ["x", "/x", 1]),
        ("check", ["/x"]),
        ("check", ["/x", 1, 2**32]),
        ("submit", {}),
        ("submit", {"input": 1, "inputs": [1]}),
        ("submit", {"inputs": []}),
        ("item", {"status": "failed", "value": None}),
        ("item", {"status": "running", "error": SCHEMAS["problem"]["examples"][0]}),
        ("snapshot", SCHEMAS["snapshot"]["examples"][0] | {"reason": "bored"}),
        ("snapshot", SCHEMAS["snapshot"]["examples"][0] | {"state": SCHEMAS["state"]["examples"][1]}),
        ("generate-input", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}),
    ],
)
def test_schema_refuses_invalid_values(name, wrong):
    assert breaches(name, wrong)


def test_references_between_schemas_exist():
    for name in SCHEMAS:
        for target in re.findall(r'"\$ref": "([^"]+)"', json.dumps(SCHEMAS[name])):
            file, _, inside = target.partition("#/")
            schema = SCHEMAS[file.removesuffix(".schema.json") or name]
            for token in inside.split("/") if inside else ():
                schema = schema[token]


# ---- the OpenAPI file ------------------------------------------------------------------------------------------


OPENAPI = yaml.safe_load((SPEC / "openapi.yaml").read_text(encoding="utf-8"))


def references(node):
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def test_references_in_openapi_resolve():
    found = set(references(OPENAPI))
    assert found
    for reference in found:
        if reference.startswith("#/"):
            node = OPENAPI
            for token in reference[2:].split("/"):
                node = node[token]
        else:
            assert reference.removeprefix("schema/").removesuffix(".schema.json") in SCHEMAS


def test_openapi_has_the_resources_of_the_jobs_chapter():
    text = (SPEC / "06-jobs.md").read_text(encoding="utf-8").partition("## 6.2")[0]
    rows = re.findall(r"^\| `([^`?]+)(?:\?[^`]*)?` \| (\w+)[^|]*\| ([\d, ]+) \|", text, re.MULTILINE)
    listed = {(path, method.lower(), status) for path, method, all_ in rows for status in all_.split(", ")}
    described = {
        (path, method, status)
        for path, item in OPENAPI["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
        for status in operation["responses"]
        if status < "300"
    }
    assert listed == described


def test_operation_ids_in_openapi_are_unique():
    names = [
        operation["operationId"]
        for item in OPENAPI["paths"].values()
        for method, operation in item.items()
        if method != "parameters"
    ]
    assert len(names) == len(set(names))


def test_each_openapi_operation_has_the_statuses_common_to_all_requests():
    for path, item in OPENAPI["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                assert {"401", "405", "429", "503"} <= operation["responses"].keys(), (path, method)


# ---- examples --------------------------------------------------------------------------------------------------


LANGUAGES = {"json", "sse", "abnf", "mermaid", "js", "lua", "sql", "http"}


def test_every_fenced_block_has_a_known_language_and_tags():
    for fence in document.fences:
        assert fence.language in LANGUAGES, location(fence)
        assert (fence.language == "http") == ("transcript" in fence.tags), location(fence)
        assert (fence.language == "json") == bool({"schema", "cases"} & fence.tags.keys()), location(fence)


@pytest.mark.parametrize("fence", [f for f in document.fences if "schema" in f.tags], ids=location)
def test_json_example_is_valid_for_its_schema(fence):
    assert breaches(fence.tags["schema"], strict_json.loads(fence.text)) == []


REFUSALS = {"malformed": DiffError, "unknown": UnknownOpError, "failed check": IntegrityError}


def test_diff_cases_have_the_documented_results():
    (fence,) = (f for f in document.fences if f.tags.get("cases") == "diff")
    cases = strict_json.loads(fence.text)
    assert {case.get("refused") for case in cases} == {None, *REFUSALS}
    for case in cases:
        found = Document(case["state"], case["columns"])
        refusal = None
        try:
            found.apply(case["diff"])
        except (DiffError, IntegrityError) as error:
            refusal = type(error)
        expected = case["state"] if "refused" in case else case["result"]
        assert found.view().value() == expected, case
        assert refusal == REFUSALS.get(case.get("refused")), case


TABLES_OF_MEMBERS = [
    ("02-discovery", "## 2.1", {"": ("discovery",)}),
    ("02-discovery", "## 2.4", {"": ("discovery", "properties", "limits")}),
    (
        "02-discovery",
        "## 2.5",
        {"": ("endpoint",), "capabilities.": ("endpoint", "properties", "capabilities")},
    ),
    ("03-framing", "## 3.6", {"": ("done",)}),
    ("05-state-and-diffs", "## 5.1", {"": ("state",), "items[].": ("item",)}),
    ("06-jobs", "## 6.4", {"": ("job-entry",)}),
    ("09-errors", "## 9.1", {"": ("problem",)}),
]


@pytest.mark.parametrize(("chapter", "heading", "schemas"), TABLES_OF_MEMBERS)
def test_tables_of_members_say_what_the_schemas_require(chapter, heading, schemas):
    required, known, conditional = {"state"} if chapter == "06-jobs" else set(), set(), set()
    for prefix, (name, *path) in schemas.items():
        schema = functools.reduce(
            operator.getitem, path, json.loads((SPEC / f"schema/{name}.schema.json").read_text("utf-8"))
        )
        required |= {prefix + each for each in schema.get("required", ())}
        known |= {prefix + each for each in schema["properties"]}
        if schema.get("if") == {"properties": {"status": {"const": "failed"}}}:
            conditional |= {prefix + each for each in schema["then"]["required"]}
    section = (SPEC / f"{chapter}.md").read_text("utf-8").partition(f"\n{heading}")[2].partition("\n## ")[0]
    header, _, *rows = (
        line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")
    )
    column = header.index("required")
    shown = {
        name: row[column] for row in rows for name in re.findall("`([^`]+)`", row[0]) if len(row) > column
    }
    # The schema requires only what every profile requires; a member with `core` is required in that profile.
    assert {name: "no" if word == "core" else word for name, word in shown.items() if name in known} == {
        name: "yes" if name in required else "if `failed`" if name in conditional else "no" for name in known
    }


@pytest.mark.parametrize("fence", [f for f in document.fences if f.language == "sse"], ids=location)
def test_sse_example_decodes_to_events_valid_for_their_schemas(fence):
    assert fence.text.endswith("\n\n")
    check_schemas_of(events_of(fence.text))


def check_schemas_of(events):
    assert events
    for event in events:
        name = SCHEMA_OF_EVENT[event.type]
        assert breaches(name, strict_json.loads(event.data)) == [], event


@for_each_case(((fence,) for fence in TRANSCRIPTS), ids=lambda fence: fence.tags["transcript"])
def test_transcript_has_valid_requests_and_bodies(fence):
    found = list(exchanges(fence.text))
    assert found
    for exchange in found:
        request, _, body = exchange.request.partition("\n\n")
        assert re.fullmatch(
            r"(GET|HEAD|POST|PUT|DELETE|OPTIONS) (/v1|\{)\S*( HTTP/1\.0)?", request.splitlines()[0]
        )
        if body and exchange.status < 400 and "/endpoints/tidewire.script/" in request:
            assert breaches("cancel" if "/cancel" in request else "submit", strict_json.loads(body)) == []
        if exchange.is_stream:
            check_schemas_of(events_of(exchange.body))
        elif exchange.body.strip():
            assert isinstance(strict_json.loads(exchange.body), dict)


@for_each_case(((fence,) for fence in TRANSCRIPTS), ids=lambda fence: fence.tags["transcript"])
def test_streams_of_a_transcript_apply_up_to_a_valid_done_event(fence):
    # Streams that begin after a cursor, or omit events, are checked where the transcript is replayed.
    for exchange in exchanges(fence.text):
        whole = (
            exchange.is_stream
            and "..." not in exchange.body
            and "{" not in re.sub(r"data:.*", "", exchange.body)
        )
        if not whole or "event:snapshot" not in exchange.body or BOUND["{digest}"] in exchange.body:
            continue
        follower = Follower()
        follower.connected()
        outcomes = [follower.receive(event) for event in events_of(exchange.body)]
        closes = [one for one in outcomes if isinstance(one, Reconnect | Fatal)]
        if closes:
            assert [one.cause for one in closes] == [Cause.GOAWAY]
        else:
            assert exchange.cut == (follower.done is None)


@for_each_case(((fence,) for fence in TRANSCRIPTS), ids=lambda fence: fence.tags["transcript"])
def test_transcript_covers_requirements_of_servers(fence):
    roles = {one.id: one.role for one in document.requirements}
    covered = extract.identifiers(fence.tags["covers"])
    assert covered
    assert len(covered) == len(set(covered))
    assert {roles[name] for name in covered} <= {"server", "both"}


def test_transcript_names_are_unique():
    names = [fence.tags["transcript"] for fence in TRANSCRIPTS]
    assert len(names) == len(set(names))


def test_schema_and_code_accept_the_same_event_ids():
    for text in ("1-1", "9999999999-999999999999999"):
        assert breaches("event-id", text) == []
        assert str(Cursor.parse(text)) == text


def test_documented_sizes_of_example_events_are_right():
    texts = {fence.text for fence in document.fences if fence.language == "sse"}
    row = next(text for text in texts if "[287,9,4,77,51]" in text)
    documented = re.search(
        r"five candidates\. The event takes (\d+) bytes", (SPEC / "08-text-generation.md").read_text("utf-8")
    )
    assert int(documented[1]) == len(row.encode())
    two = next(text for text in texts if text.startswith('id:1-17\ndata:" world"\n\nid:1-18\ndata:"!"'))
    documented = re.search(r"stream, (\d+) and (\d+) bytes", (SPEC / "03-framing.md").read_text("utf-8"))
    first, second = (len(block.encode()) + 2 for block in two.strip("\n").split("\n\n"))
    assert (int(documented[1]), int(documented[2])) == (first, second)


def test_checks_and_digests_of_the_examples_are_right():
    text = (SPEC / "05-state-and-diffs.md").read_text(encoding="utf-8")
    shown = re.findall(r"the text `([^`]+)` has `n` (\d+) and `crc` (\d+)", text)
    assert len(shown) == 2
    for sample, n, crc in shown:
        assert text_check("/a", sample) == ["/a", int(n), int(crc)]
    (items, documented) = re.search(r"final items `([^`]+)` have the digest `(\w+)`", text).groups()
    assert digest(strict_json.loads(items)) == documented
    (done,) = (strict_json.loads(f.text) for f in document.fences if f.tags.get("schema") == "done")
    assert done["check"] == [text_check("/items/0/value", "Hello!")]
    assert done["digest"] == digest([{"status": "succeeded", "value": "Hello!"}])
    page = (SPEC / "stream.md").read_text(encoding="utf-8")
    (items,) = re.findall(r"the digest of `([^`]+)`", page)
    (job,) = (
        strict_json.loads(f.text)
        for f in document.fences
        if f.chapter == "stream" and f.tags.get("schema") == "job"
    )
    assert job["state"]["items"] == strict_json.loads(items)
    assert job["done"]["digest"] == digest(job["state"]["items"])
    assert job["done"]["error"] == job["state"]["error"] == job["state"]["items"][0]["error"]


def test_example_log_probabilities_are_sorted_and_sum_to_at_most_one():
    tops = [row[-1] for row in rows_of_examples()]
    for fence in document.fences:
        if fence.tags.get("schema") == "generate-value":
            value = strict_json.loads(fence.text)
            assert len({len(value[name]) for name in ("token_ids", "logprobs", "top_ids", "ranks")}) == 1
            tops += value["top_logprobs"]
    assert tops
    for top in tops:
        assert top == sorted(top, reverse=True)
        assert sum(map(math.exp, top)) <= 1


def rows_of_examples():
    for fence in document.fences:
        if fence.language == "sse" and fence.chapter == "08-text-generation":
            for event in events_of(fence.text):
                for op in strict_json.loads(event.data):
                    assert op[0] == "r"
                    yield op


def test_event_schemas_match_the_table_in_the_chapter():
    text = (SPEC / "03-framing.md").read_text(encoding="utf-8").partition("## 3.4")[2]
    rows = re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\|[^|]*\| `([\w-]+)\.schema\.json` \|$", text, re.MULTILINE)
    assert dict(rows) == SCHEMA_OF_EVENT


# ---- fingerprints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "is_error"),
    [
        ("- A server MUST do it. [TW-FRM-001]", REQUIREMENT, False),
        ("- A server MUST do it at once. [TW-FRM-001]", REQUIREMENT, True),
        ("- A server SHOULD do it. [TW-FRM-001]", REQUIREMENT, True),
        ("- A server MUST do it. [TW-FRM-001 both]", REQUIREMENT, True),
        ("- A server MUST do something else. [TW-FRM-002]", REQUIREMENT, False),
    ],
)
def test_changed_text_of_a_requirement_is_an_error(before, after, is_error):
    known = json.loads(extract.fingerprints_json(parse_chapter(before), {}))
    changed = parse_chapter(after)
    assert bool(extract.changed_texts(changed, known)) is is_error
    # The fingerprint of a text never replaces an earlier one.
    assert known.items() <= json.loads(extract.fingerprints_json(changed, known)).items()


def test_clarified_requirement_is_listed_with_the_fingerprint_of_its_text():
    known = json.loads(extract.fingerprints_json(parse_chapter(REQUIREMENT), {}))
    changed = parse_chapter("- A server MUST do it at once. [TW-FRM-001]")
    (error,) = extract.changed_texts(changed, known)
    found = re.search(r"[0-9a-f]{12}$", error)[0]
    row = f"## 14.3 {extract.CLARIFIED_HEADING}\n\n| TW-FRM-001 | `{found}` | it was not clear when |\n"
    extract.read_chapter("14-changes", row, changed)
    assert extract.changed_texts(changed, known) == []
    (again,) = parse_chapter("- A server MUST do it soon. [TW-FRM-001]").requirements
    changed.requirements[:] = [again]
    assert len(extract.changed_texts(changed, known)) == 1


@pytest.mark.parametrize("chapter", sorted(SPEC.glob("[0-9][0-9]-*.md")), ids=lambda path: path.stem)
def test_sections_are_numbered_in_order(chapter):
    number = int(chapter.name[:2])
    found = re.findall(rf"^## {number}\.(\d+) ", chapter.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(each) for each in found] == [*range(1, len(found) + 1)]


def test_example_of_an_ended_job_is_consistent():
    ended = SCHEMAS["job"]["examples"][1]
    assert ended["done"]["digest"] == digest(ended["state"]["items"])
    assert ended["done"]["expires_at"] == ended["expires_at"]
