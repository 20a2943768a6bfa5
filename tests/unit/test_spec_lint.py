"""The specification holds its own rules: one key word and one identifier a sentence, examples that are what they say."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from support.spec_document import (
    SCHEMA_OF_EVENT,
    SCHEMAS,
    SPEC,
    breaches,
    document,
    events_of,
    exchanges,
    extract,
)
from tidewire.protocol import strict_json
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.diff_shapes import DiffError, UnknownOpError
from tidewire.protocol.document.digests import IntegrityError, digest, text_check
from tidewire.protocol.follower import Cause, Fatal, Follower, Reconnect
from tidewire.protocol.problems import REGISTRY as PROBLEMS

TRACEABILITY = json.loads(
    (SPEC.parent / "src/conformance/tidewire_conformance/traceability.json").read_text(encoding="utf-8")
)
TRANSCRIPTS = [fence for fence in document.fences if "transcript" in fence.tags]


def place(fence):
    return f"{fence.chapter}:{fence.line}"


# ---- sentences -------------------------------------------------------------------------------------------------


def test_chapters_break_no_rule():
    assert document.errors == []


def test_requirements_and_readme_are_what_the_chapters_say():
    run = subprocess.run(
        [sys.executable, str(SPEC / "extract.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_every_chapter_has_an_area_and_every_area_a_chapter():
    assert [file.stem for file in sorted(SPEC.glob("[0-9][0-9]-*.md"))] == list(extract.AREAS)


def test_sentences_without_data_exist_and_have_one_reason():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    unseen = extract.reasons(text, extract.UNSEEN_HEADING)
    without = extract.reasons(text, extract.WITHOUT_DATA_HEADING)
    assert unseen
    assert without
    assert not unseen.keys() & without.keys()
    assert unseen.keys() | without.keys() <= {one.id for one in document.requirements}
    for heading in (extract.UNSEEN_HEADING, extract.WITHOUT_DATA_HEADING, extract.WATCHED_HEADING):
        listed = extract.identifiers(text.partition(f"## {heading}\n")[2].partition("\n## ")[0])
        assert len(listed) == len(set(listed)), "one reason each"


JUDGED_BY_A_TEST = {
    "test_endpoint_descriptions_are_correct": ["TW-DSC-017", "TW-DSC-019", "TW-DSC-022"],
    "test_a_slow_reader_that_makes_progress_is_not_closed": ["TW-DIF-068"],
    "test_a_stream_whose_log_fails_sends_goaway_and_is_logged_once": ["TW-DEP-005"],
    "test_the_hash_changes_with_the_vocabulary": ["TW-GEN-040"],
    "test_a_page_closes_its_stream_at_done": ["TW-BRW-001", "TW-BRW-002", "TW-BRW-003", "TW-BRW-004"],
}
"""Test → requirements that README.md calls judged by a test of their own; the specification names no test."""


def test_tests_that_judge_a_sentence_exist():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    judged = extract.reasons(text, extract.WATCHED_HEADING)
    own = {name for name, row in judged.items() if not row.startswith("every transcript: ")}
    assert own == {name for names in JUDGED_BY_A_TEST.values() for name in names}
    files = [file for file in (SPEC.parent / "tests").rglob("test_*.py") if file != Path(__file__)]
    tests = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [test for test in JUDGED_BY_A_TEST if f"def {test}(" not in tests] == []


def test_sentences_that_data_names_need_no_reason():
    text = (SPEC / "README.md").read_text(encoding="utf-8")
    found = extract.covered(document) | extract.reasons(text, extract.WATCHED_HEADING)
    for heading in (extract.UNSEEN_HEADING, extract.WITHOUT_DATA_HEADING):
        assert not extract.reasons(text, heading).keys() & found.keys()


def judge(*lines, chapter="03-framing"):
    spec = extract.Specification()
    extract.read_chapter(chapter, "\n".join(["*Applies to: server · core*", *lines, ""]), spec)
    return spec


SENTENCE = "- A server MUST do it. [TW-FRM-001]"


def test_a_sentence_is_read_with_level_role_and_profile():
    (one,) = judge(SENTENCE).requirements
    assert one == extract.Requirement(
        "TW-FRM-001", "MUST", "server", "core", "A server MUST do it.", "03-framing"
    )


@pytest.mark.parametrize(
    ("override", "role", "profile"),
    [("client", "client", "client"), ("both", "both", "core"), ("client/browser", "client", "browser")],
)
def test_a_word_after_the_identifier_overrides_role_and_profile(override, role, profile):
    (one,) = judge(f"- A page MUST NOT do it. [TW-FRM-001 {override}]").requirements
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
def test_a_breach_of_a_rule_is_told(line, complaint):
    (error,) = judge(line).errors[:1]
    assert complaint in error


def test_an_identifier_that_stands_twice_is_told():
    assert "stands for another sentence already" in judge(SENTENCE, SENTENCE).errors[0]


def test_key_words_in_code_in_quotes_and_in_fences_are_not_normative():
    assert judge("`MUST`", "> It MUST.", "```", "MUST", "```", "it must, it may").errors == []


def test_a_reference_to_an_unknown_sentence_is_told(tmp_path):
    (tmp_path / "03-framing.md").write_text("As TW-FRM-777 says.\n", encoding="utf-8")
    assert extract.read(tmp_path).errors == ["03-framing:1: TW-FRM-777 is not defined"]


def test_a_reference_to_an_unknown_sentence_is_told_wherever_it_stands(tmp_path):
    (tmp_path / "03-framing.md").write_text(
        "```http covers=TW-FRM-771\n# TW-FRM-772\n```\n", encoding="utf-8"
    )
    (tmp_path / "A-appendix.md").write_text("As TW-FRM-773 says.\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("| TW-FRM-774 | why |\n", encoding="utf-8")
    told = [error.split()[1] for error in extract.read(tmp_path).errors]
    assert told == ["TW-FRM-771", "TW-FRM-772", "TW-FRM-773", "TW-FRM-774"]


def test_a_withdrawn_sentence_that_is_forgotten_leaves_a_gap_that_is_told(tmp_path):
    text = "*Applies to: server · core*\n- A server MUST do it. [TW-FRM-003]\n"
    (tmp_path / "03-framing.md").write_text(text, encoding="utf-8")
    (tmp_path / "14-changes.md").write_text("## Withdrawn identifiers\n\n| TW-FRM-001 |\n", encoding="utf-8")
    assert extract.read(tmp_path).errors == ["TW-FRM-002 is neither defined nor withdrawn"]


def test_a_withdrawn_sentence_may_be_referred_to_but_not_defined_again(tmp_path):
    (tmp_path / "14-changes.md").write_text("## Withdrawn identifiers\n\n| TW-FRM-001 |\n", encoding="utf-8")
    (tmp_path / "03-framing.md").write_text("As TW-FRM-001 said.\n", encoding="utf-8")
    assert extract.read(tmp_path).errors == []
    text = f"*Applies to: server · core*\n{SENTENCE}\n"
    (tmp_path / "03-framing.md").write_text(text, encoding="utf-8")
    assert extract.read(tmp_path).errors == ["TW-FRM-001 is withdrawn and defined"]


def test_an_identifier_that_vanishes_is_told_unless_it_is_withdrawn():
    spec = judge(SENTENCE)
    old = '[{"id": "TW-FRM-001"}, {"id": "TW-FRM-002"}, {"id": "TW-FRM-003"}]'
    spec.withdrawn.add("TW-FRM-003")
    assert extract.vanished(spec, old) == ["TW-FRM-002"]


def test_sentence_that_nothing_exercises_is_told_unless_there_is_a_reason():
    spec = judge("- A server MUST do it. [TW-FRM-999]", "- A server MAY do it. [TW-FRM-998]")
    text, untold = extract.coverage(spec, "")
    assert untold == ["TW-FRM-999"]
    assert "| TW-FRM-999 | server | – **nothing** |" in text
    readme = f"## {extract.WITHOUT_DATA_HEADING}\n\n| TW-FRM-999, TW-FRM-998 | it is late |\n"
    text, untold = extract.coverage(spec, readme)
    assert untold == []
    assert "| TW-FRM-999 | server | – it is late |" in text


def test_requirements_hold_what_the_chapters_say_and_nothing_of_the_suite():
    (entry,) = json.loads(extract.requirements_json(judge(SENTENCE)))
    assert [*entry] == ["id", "level", "role", "profile", "text", "chapter"]


def test_the_specification_names_no_check_and_no_test():
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
def test_state_machines_are_drawn_from_their_tables(section, row):
    text = (SPEC / "01-overview.md").read_text(encoding="utf-8").partition(section)[2].partition("\n## ")[0]
    table = {(a, b) for a, b in re.findall(row, text, re.MULTILINE) if a not in {"from", "state", "any"}}
    drawn = set(re.findall(r"^  (\w+) --> (\w+) : ", text, re.MULTILINE))
    assert table == drawn


def test_the_registry_of_problems_is_the_table_of_the_chapter():
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
def test_schema_is_valid_and_its_examples_fit_it(name):
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
def test_schema_refuses_what_the_chapters_refuse(name, wrong):
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


def test_references_of_openapi_resolve():
    found = set(references(OPENAPI))
    assert found
    for reference in found:
        if reference.startswith("#/"):
            node = OPENAPI
            for token in reference[2:].split("/"):
                node = node[token]
        else:
            assert reference.removeprefix("schema/").removesuffix(".schema.json") in SCHEMAS


def test_openapi_has_the_resources_of_the_chapter_on_jobs():
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


def test_openapi_names_each_operation_once():
    names = [
        operation["operationId"]
        for item in OPENAPI["paths"].values()
        for method, operation in item.items()
        if method != "parameters"
    ]
    assert len(names) == len(set(names))


def test_openapi_gives_every_operation_the_statuses_that_any_request_may_get():
    for path, item in OPENAPI["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                assert {"401", "405", "429", "503"} <= operation["responses"].keys(), (path, method)


# ---- examples --------------------------------------------------------------------------------------------------


LANGUAGES = {"json", "sse", "abnf", "mermaid", "js", "lua", "sql", "http"}


def test_every_fenced_block_says_what_it_is():
    for fence in document.fences:
        assert fence.language in LANGUAGES, place(fence)
        assert (fence.language == "http") == ("transcript" in fence.tags), place(fence)
        assert (fence.language == "json") == bool({"schema", "cases"} & fence.tags.keys()), place(fence)


@pytest.mark.parametrize("fence", [f for f in document.fences if "schema" in f.tags], ids=place)
def test_json_example_fits_its_schema(fence):
    assert breaches(fence.tags["schema"], strict_json.loads(fence.text)) == []


REFUSALS = {"malformed": DiffError, "unknown": UnknownOpError, "failed check": IntegrityError}


def test_cases_of_diffs_come_out_as_the_chapter_says():
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


@pytest.mark.parametrize("fence", [f for f in document.fences if f.language == "sse"], ids=place)
def test_example_of_bytes_decodes_to_events_that_fit_their_schemas(fence):
    assert fence.text.endswith("\n\n")
    fit_schemas(events_of(fence.text))


def fit_schemas(events):
    assert events
    for event in events:
        name = SCHEMA_OF_EVENT[event.type]
        assert breaches(name, strict_json.loads(event.data)) == [], event


@pytest.mark.parametrize("fence", TRANSCRIPTS, ids=lambda fence: fence.tags["transcript"])
def test_transcript_is_a_conversation_whose_bodies_fit_their_schemas(fence):
    found = list(exchanges(fence.text))
    assert found
    for answer in found:
        request, _, body = answer.request.partition("\n\n")
        assert re.fullmatch(
            r"(GET|POST|PUT|DELETE|OPTIONS) (/v1|\{)\S*( HTTP/1\.0)?", request.splitlines()[0]
        )
        if body and answer.status < 400 and "/endpoints/tidewire.script/" in request:
            assert breaches("cancel" if "/cancel" in request else "submit", strict_json.loads(body)) == []
        if answer.is_stream:
            fit_schemas(events_of(answer.body))
        elif answer.body.strip():
            assert isinstance(strict_json.loads(answer.body), dict)


@pytest.mark.parametrize("fence", TRANSCRIPTS, ids=lambda fence: fence.tags["transcript"])
def test_streams_of_a_transcript_that_begin_with_a_snapshot_fold_up_to_a_done_that_verifies(fence):
    # What begins with a cursor, or leaves events out, is folded where it is played.
    for answer in exchanges(fence.text):
        whole = (
            answer.is_stream and "..." not in answer.body and "{" not in re.sub(r"data:.*", "", answer.body)
        )
        if not whole or "event:snapshot" not in answer.body or '"{digest}"' in answer.body:
            continue
        follower = Follower()
        follower.connected()
        outcomes = [follower.receive(event) for event in events_of(answer.body)]
        closes = [one for one in outcomes if isinstance(one, Reconnect | Fatal)]
        if closes:
            assert [one.cause for one in closes] == [Cause.GOAWAY]
        else:
            assert answer.cut == (follower.done is None)


@pytest.mark.parametrize("fence", TRANSCRIPTS, ids=lambda fence: fence.tags["transcript"])
def test_transcript_covers_sentences_of_servers(fence):
    roles = {one.id: one.role for one in document.requirements}
    covered = extract.identifiers(fence.tags["covers"])
    assert covered
    assert len(covered) == len(set(covered))
    assert {roles[name] for name in covered} <= {"server", "both"}


def test_transcripts_have_names_of_their_own():
    names = [fence.tags["transcript"] for fence in TRANSCRIPTS]
    assert len(names) == len(set(names))


def test_the_grammar_of_ids_in_schema_and_code_is_one():
    for text in ("1-1", "9999999999-999999999999999"):
        assert breaches("event-id", text) == []
        assert str(Cursor.parse(text)) == text


def test_examples_of_the_overview_of_a_row_are_as_long_as_the_text_says():
    texts = {fence.text for fence in document.fences if fence.language == "sse"}
    row = next(text for text in texts if "[287,9,4,77,51]" in text)
    said = re.search(r"five candidates, (\d+) bytes", (SPEC / "08-text-generation.md").read_text("utf-8"))
    assert int(said[1]) == len(row.encode())
    two = next(text for text in texts if text.startswith('id:1-17\ndata:" world"\n\nid:1-18\ndata:"!"'))
    said = re.search(r"stream, (\d+) and (\d+) bytes", (SPEC / "03-framing.md").read_text("utf-8"))
    first, second = (len(block.encode()) + 2 for block in two.strip("\n").split("\n\n"))
    assert (int(said[1]), int(said[2])) == (first, second)


def test_checks_and_digests_of_the_examples_are_right():
    text = (SPEC / "05-state-and-diffs.md").read_text(encoding="utf-8")
    shown = re.findall(r"the text `([^`]+)` has `n` (\d+) and `crc` (\d+)", text)
    assert len(shown) == 2
    for sample, n, crc in shown:
        assert text_check("/a", sample) == ["/a", int(n), int(crc)]
    (items, said) = re.search(r"final items `([^`]+)` have the digest `(\w+)`", text).groups()
    assert digest(strict_json.loads(items)) == said
    (done,) = (strict_json.loads(f.text) for f in document.fences if f.tags.get("schema") == "done")
    assert done["check"] == [text_check("/items/0/value", "Hello!")]
    assert done["digest"] == digest([{"status": "succeeded", "value": "Hello!"}])


def test_log_probabilities_of_the_examples_are_ordered_and_sum_to_at_most_one():
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


def test_names_of_the_schemas_of_events_are_those_of_the_table():
    text = (SPEC / "03-framing.md").read_text(encoding="utf-8").partition("## 3.4")[2]
    rows = re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\|[^|]*\| `([\w-]+)\.schema\.json` \|$", text, re.MULTILINE)
    assert dict(rows) == SCHEMA_OF_EVENT
