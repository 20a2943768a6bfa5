"""`tidewire conformance --client`: client programs, exit codes, reports, and variants of the scenarios."""

import json
import re
import shlex
import shutil
import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import tidewire_conformance
from proof.clients.faulty_client import all_faulty_clients
from proof.clients.response_faults import AcceptsCompressedStreams
from proof.reimplementations.plain_adapter import PlainAdapter
from proof.reimplementations.plain_client import PlainClient
from support.chromium import CHROMIUM
from support.spec_document import document
from tidewire_conformance import specification
from tidewire_conformance.cli import app
from tidewire_conformance.clients.scenarios import load_all
from tidewire_conformance.clients.scenarios.play_all_scenarios import ScenarioPlan, run
from tidewire_conformance.clients.scenarios.scenario_to_verdict import name_of
from tidewire_conformance.clients.scenarios.server_variants import VARIANTS, variant_scenarios
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome, SkipReason

PYTHON = shlex.quote(sys.executable)
PROJECT_CLIENT = f"{PYTHON} -m tidewire.conformance_adapter"
SHELL = f"{PYTHON} -m tidewire_conformance.clients.examples.shell_client"
SCENARIOS = load_all()
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
SCHEMA = json.loads(
    (Path(tidewire_conformance.__file__).parent / "report/report.schema.json").read_text(encoding="utf-8")
)

ALWAYS_SUCCEEDS = """
    import json, sys
    print(json.dumps({"client": "yes-man", "can": ["submit", "batch", "checkpoint"]}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "bye":
            break
        print(json.dumps({"id": command["id"], "end": "succeeded"}), flush=True)
"""


def conformance(*arguments):
    found = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "300"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture
def program(tmp_path):
    """A function that writes a program and returns the command that starts it."""

    def make(text):
        file = tmp_path / "client.py"
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return shlex.join([sys.executable, str(file)])

    return make


def judge(client, *names, **options):
    found = run(ScenarioPlan("a client", **options), [BY_NAME[name] for name in names], PlainAdapter(client))
    return grade(found)


# ---- exit codes --------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_the_project_client_passes_the_scenarios_and_their_variants():
    areas = [word for area in ("diffs", *VARIANTS) for word in ("--only", area)]
    found = conformance("--client", PROJECT_CLIENT, *areas)
    assert found.exit_code == 0, found.output
    assert re.match(r"core(\+durable)? · (\d+)/\2 MUST · (\d+)/\3 SHOULD\n", found.stdout)


def test_a_program_that_always_reports_succeeded_fails_each_scenario(program, tmp_path):
    file = tmp_path / "report.json"
    found = conformance("--client", program(ALWAYS_SUCCEEDS), "--only", "ends", "--json", file)
    assert found.exit_code == 1
    outcomes = {check["outcome"] for check in json.loads(file.read_text())["checks"]}
    assert "pass" not in outcomes
    assert "no profile" in found.output


INTRODUCED = 'print(\'{"client": "a", "can": []}\', flush=True); input(); '


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("raise SystemExit('no such luck')", 3, "the program exited with 1; standard error: no such luck"),
        ("print('hello', flush=True)", 3, "a line that is not JSON"),
        ("print('{}', flush=True); input()", 3, "is not an introduction"),
        (INTRODUCED + "print('Hello', flush=True)", 3, "a line that is not JSON: b'Hello"),
        (INTRODUCED + "raise SystemExit('oh')", 1, "the program exited with 1; standard error: oh"),
    ],
)
def test_a_program_that_breaks_off_or_writes_no_json_has_its_exit_code(program, text, code, message):
    found = conformance("--client", program(text), "--only", "answers.404")
    assert (found.exit_code, message in found.output) == (code, True), found.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--client", "/no/such/client"], 3, "cannot start /no/such/client"),
        (["--client", "'"], 2, "is not a valid command"),
        (["--client", PROJECT_CLIENT, "http://127.0.0.1:1"], 2, "--client cannot be combined with a URL"),
        *(
            (["--client", PROJECT_CLIENT, option, value], 2, "--client cannot be combined with a URL")
            for option, value in (("--header", "a: b"), ("--example", "e={}"))
        ),
        (["http://127.0.0.1:1", "--variants", "all"], 2, "--client cannot be combined with a URL"),
        (["--variants", "all"], 2, "--variants requires --client"),
        ([], 2, "pass the URL of a server, set TIDEWIRE_URL, or pass --client"),
        (["--client", PROJECT_CLIENT, "--only", "no-such-thing"], 4, "no scenario matches no-such-thing"),
        (["--client", PROJECT_CLIENT, "--variants", "esperanto"], 4, "unknown variant esperanto"),
        (["--client", PROJECT_CLIENT, "--only", "answers", "--skip", "answers"], 4, "no scenario is left"),
    ],
)
def test_invalid_arguments_exit_with_a_message(arguments, code, message):
    found = conformance(*arguments)
    assert (found.exit_code, message in found.output) == (code, True), found.output


def test_list_selects_scenarios_by_requirement_and_name():
    listed = conformance("--client", "x", "--list", "--only", "TW-FRM-084", "--only", "resync.gap")
    assert listed.exit_code == 0
    assert "framing.byte-order-mark" in listed.output
    assert "resync.gap" in listed.output
    assert "byte-order-mark.rollback" in listed.output


# ---- output ------------------------------------------------------------------------------------------------------


def test_a_failure_shows_requirement_bytes_and_rerun_command(program):
    found = conformance("--client", program(ALWAYS_SUCCEEDS), "--only", "answers.404")
    text = specification.requirements()["TW-CLI-036"].text
    assert f"FAIL  {text} [TW-CLI-036]" in found.output
    assert re.search(r"expected  number of event stream requests: at least 1", found.output)
    assert re.search(r"\n +\d+\.\d +\* .*'end': 'succeeded'", found.output)
    assert re.search(r"again: tidewire conformance --client .* --only answers.404", found.output)


def test_a_failure_at_a_cut_shows_the_bytes_on_the_wire(program):
    found = conformance("--client", SHELL, "--only", "cuts.body-ends-inside-an-event")
    assert found.exit_code == 1
    assert re.search(r'\n +\d+\.\d +1 < id:1-3\\ndata:"Hel"\\n\\n\n +\d+\.\d +1 < id:1-4', found.output)


@pytest.mark.heavy
def test_client_reports_have_the_format_of_server_reports(program, tmp_path):
    names = ["report.json", "report.xml", "report.html"]
    written = [word for flag, name in zip(("json", "junit", "page"), names, strict=True)
               for word in (f"--{flag}", tmp_path / name)]  # fmt: skip
    found = conformance(
        "--client",
        program(ALWAYS_SUCCEEDS),
        "--only",
        "diffs",
        "--only",
        "ends.failed",
        "--patience",
        "1.5",
        *written,
    )
    assert found.exit_code == 1
    content = json.loads((tmp_path / names[0]).read_text())
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(content)] == []
    assert content["client"] == "yes-man"
    assert content["plan"]["patience"] == 1.5
    suites = ET.parse(tmp_path / names[1]).getroot().findall("testsuite")
    assert {suite.get("name") for suite in suites} == {"diffs", "ends"}
    page = (tmp_path / names[2]).read_text()
    assert "<h2>All requirements</h2>" in page
    assert "/usr" not in page.partition("<pre>")[0]


def test_undeclared_traits_are_not_counted_and_untested_scenarios_are():
    class Modest(PlainClient):
        pass

    adapter = PlainAdapter(Modest)
    adapter.traits = frozenset()
    found = run(ScenarioPlan("a client"), [BY_NAME["submit"], BY_NAME["404"]], adapter)
    assert {verdict.check: verdict.why for verdict in found.verdicts} == {
        "answers.submit": SkipReason.NOT_DECLARED,
        "answers.404": None,
    }
    assert all(each.is_whole or not each.total for each in grade(found).grades)
    spent = judge(PlainClient, "404", budget=-1)
    assert [verdict.why for verdict in spent.run.verdicts] == [SkipReason.UNTESTED]
    assert spent.exit_code == 4


def test_the_worst_repetition_of_a_scenario_counts():
    class WrongAtTimes(PlainClient):
        count = 0

        def receive(self, event):
            if event.type == "done":
                type(self).count += 1
                if type(self).count == 2:
                    raise RuntimeError("the second time")
            return super().receive(event)

    report = judge(WrongAtTimes, "done-closes", repeat=3, lanes=1)
    (verdict,) = report.run.verdicts
    assert (verdict.rounds, verdict.outcome) == (3, Outcome.FAIL)
    assert verdict.note.startswith("1 of 3 times")
    assert report.exit_code == 1


def test_an_error_of_the_suite_is_reported_as_an_error(monkeypatch):
    def breaks(*_):
        raise ZeroDivisionError

    right = judge(PlainClient, "404", "410")
    assert right.exit_code == 0
    monkeypatch.setattr(
        sys.modules["tidewire_conformance.clients.scenarios.scenario_player"], "judge", breaks
    )
    report = judge(PlainClient, "404", "410")
    assert {verdict.outcome for verdict in report.run.verdicts} == {Outcome.ERROR}
    assert report.exit_code == 3


def test_a_baseline_excuses_known_failures_and_reports_stale_ones(tmp_path):
    file = tmp_path / "known.toml"
    names = sorted({*BY_NAME["closed-inside-an-event"].requirements, "TW-CLI-052"})
    file.write_text("".join(f'[[known]]\nsentence = "{name}"\nreason = "a toy"\n' for name in names))
    arguments = ("--client", SHELL, "--only", "cuts.closed-inside-an-event", "--baseline", file)
    assert conformance(*arguments).exit_code == 0
    stale = conformance("--client", PROJECT_CLIENT, *arguments[2:])
    assert stale.exit_code == 1
    assert "but the baseline lists it as failing. Remove it from the baseline." in stale.output


def test_requirements_on_requests_are_checked_in_every_scenario():
    report = judge(AcceptsCompressedStreams, "404", "done-closes")
    assert {each.requirement.id for each in report.failures} == {"TW-SEC-023"}
    held = {name for name, each in report.results.items() if each.outcome is Outcome.PASS}
    assert {"TW-CLI-008", *BY_NAME["404"].requirements} <= held


# ---- variants of the scenarios -----------------------------------------------------------------------------------


def test_each_variant_changes_its_scenarios():
    found = list(variant_scenarios(SCENARIOS, ["all"]))
    assert {variant_scenario.area for variant_scenario in found} == {*VARIANTS}
    for variant_scenario in found:
        plain = BY_NAME[variant_scenario.name]
        assert (variant_scenario.scripts, variant_scenario.discovery, variant_scenario.late) != (
            plain.scripts,
            plain.discovery,
            plain.late,
        ), name_of(variant_scenario)
    assert len({name_of(each) for each in [*SCENARIOS, *found]}) == len(SCENARIOS) + len(found)


def test_a_response_of_http_1_0_is_never_declared_as_chunked():
    streams = [
        each for found in variant_scenarios(SCENARIOS, ["http-1"]) for each in found.scripts["streams"]
    ]
    unchunked = [each.get("headers", {}) for each in streams if each.get("framing") == "http/1.0"]
    assert len(unchunked) > 10
    assert not [headers for headers in unchunked if "transfer-encoding" in map(str.lower, headers)]


def test_requirements_of_variants_are_about_clients():
    roles = {one.id: one.role for one in document.requirements}
    for name, variant in VARIANTS.items():
        assert {roles[sentence] for sentence in variant.requirements} <= {"client", "both"}, name


@pytest.mark.parametrize(
    ("variant", "faulty_name"),
    [
        ("one-byte-chunks", "DecodesChunksSeparately"),
        ("comments", "DispatchesEventAfterComment"),
        ("unknown-members", "GivesUpOnUnknownMember"),
        ("unknown-events", "GivesUpOnUnknownEvent"),
        ("byte-order-mark", "LosesEventAfterByteOrderMark"),
        ("merged", "IgnoresBaseOfMergedDiff"),
        ("busy", "GivesUpOnFirst503"),
    ],
)
def test_a_variant_detects_a_client_that_mishandles_it(variant, faulty_name):
    client = next(client for client in all_faulty_clients() if client.__name__ == faulty_name)
    chosen = [
        variant_scenario
        for variant_scenario in variant_scenarios(SCENARIOS, [])
        if variant_scenario.area == variant
    ]
    found = run(ScenarioPlan("a client", patience=0.3), chosen, PlainAdapter(client))
    report = grade(found)
    assert VARIANTS[variant].requirements[0] in {each.requirement.id for each in report.failures}


# ---- included clients --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("awk")), reason="no curl or awk")
def test_the_shell_client_passes_one_connection_and_fails_resuming(tmp_path):
    found = conformance("--client", SHELL, "--only", "framing.comments")
    assert found.exit_code == 0, found.output
    found = conformance("--client", SHELL, "--only", "cuts.reset-after-an-event", "--only", "resync.gap")
    assert found.exit_code == 1
    assert re.search(r"durable +0/\d+ MUST", found.output), found.output
    assert "[TW-CLI-009]" in found.output


@pytest.mark.browser
@pytest.mark.heavy
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.timeout(120)
def test_a_browser_page_is_tested_like_any_other_client(tmp_path):
    names = [
        "cuts.reset-after-an-event",
        "diffs.rollback",
        "answers.404",
        "ends.failed",
        "waiting.backoff-doubles",
    ]
    arguments = [word for name in names for word in ("--only", name)]
    file = tmp_path / "report.json"
    command = f"{PYTHON} -m tidewire_conformance.clients.examples.chromium_client"
    found = conformance("--client", command, *arguments, "--json", file)
    assert found.exit_code == 1
    broken = {
        check["name"]: {each["sentence"] for each in check["broken"]}
        for check in json.loads(file.read_text())["checks"]
    }
    # A page cannot choose the codings that it accepts, and its EventSource waits the same time before each
    # retry.
    assert {name for name, sentences in broken.items() if sentences == {"TW-SEC-023"}} == {*names[:4]}
    assert "TW-CLI-015" in broken[names[4]]
