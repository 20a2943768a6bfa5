"""Proof of the profile `sse`, and its page docs/proof/event-streams.md.

The page has the results of other projects' readers, of the faulty readers, and of the faulty servers. The libraries of
other projects are optional. A reader whose library is missing keeps the row that the page already has for it. Without
such a row, it is listed as *not run*.
"""

import argparse
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from proof.clients.faulty_client import words_of
from proof.event_streams.faulty_readers import FAULTY_READERS, FaultyReader
from proof.event_streams.stream_servers import STREAM_SERVERS, StreamServer, running_stream_server
from proof.kill_matrix import ROOT
from proof.reimplementations.plain_event_stream_reader import EventStreamReaderAdapter, PlainEventStreamReader
from tidewire_conformance import specification
from tidewire_conformance.clients import event_stream_clients
from tidewire_conformance.clients.scenarios import AdapterError, ProgramAdapter, play
from tidewire_conformance.clients.scenarios.event_stream_scenarios import load_event_stream_scenarios
from tidewire_conformance.clients.scenarios.play_all_scenarios import ScenarioPlan, run
from tidewire_conformance.event_streams.judge_stream_server import judge_stream_server
from tidewire_conformance.event_streams.stream_checks import STREAM_CHECKS
from tidewire_conformance.judging.verdict import Outcome
from tidewire_conformance.parse_option_values import EventStreamOptions

PAGE = ROOT / "docs/proof/event-streams.md"
RESULTS = ROOT / "proof/results/event-streams.json"
PACKAGE = event_stream_clients.__name__
FOLDER = Path(event_stream_clients.__file__).parent
SCENARIOS = load_event_stream_scenarios()
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
AREAS = ("sse_framing", "sse_responses", "sse_reconnecting")

PYTHON_CLIENTS = {
    "httpx-sse": "httpx_sse",
    "httpx2": "httpx2_sse",
    "launchdarkly-eventsource": "launchdarkly_eventsource",
    "openai": "openai_decoder",
    "anthropic": "anthropic_decoder",
    "sseclient-py": "sseclient_py",
    "requests-sse": "requests_sse",
    "aiohttp-sse-client": "aiohttp_sse_client",
}
"""Module of the adapter, by the name of the distribution."""
NODE_CLIENTS = ("eventsource", "eventsource-parser", "fetch-event-source")
LANES = 6
"""Number of programs that run at the same time. Some libraries take seconds to import."""

HEAD = """# Event streams: readers of other projects, and the proof of the profile `sse`

`python -m proof event-streams` generates this page. The [profile `sse`](../../spec/sse.md) restates the WHATWG standard
for any server and any client; [how to test event streams](../how-to/test-event-streams.md) describes its use.

## Readers of other projects

A reader *passes* a case if it delivers the right events. A case is *late* if the reader passes it but holds an event back
until a later byte or the end of the stream; the byte that completes an event can be the CR of a CR LF. A case is
*not judged* if it needs something that the reader does not offer: event types, ids, the reconnection time, or automatic
reconnection. Each case is played as one chunk and byte by byte.

A decoder without an HTTP client (anthropic, eventsource-parser, openai, sseclient-py) reads the responses of httpx2 or of
fetch, and its adapter verifies the status and the media type. anthropic and openai are clients of one API each: their
decoders are internal, and their servers need not send all that the standard allows. Several cases of one requirement
fail for one reason, so the number of requirements says more about a reader than the number of cases. Some deviations are
rare in practice: eventsource-parser and eventsource fail TW-SSE-021 only if the last byte of a stream is a CR.

There is no adapter for gradio_client. Its reader is a part of its method `Client.stream_messages`, which parses the data
of each event as a JSON message of Gradio's queue and delivers neither types nor ids nor the data itself. An adapter would
have to replace parts of the reader, and the result would not be that of the library.

A reader whose library is missing when the page is generated keeps its row of an earlier run, with the version of that run.

"""


@dataclass(frozen=True)
class ReaderRow:
    """Result of one reader of another project, by area."""

    name: str
    version: str
    outcomes: dict[str, dict[str, int]]
    """Number of cases by outcome, for each area."""
    examples: dict[str, str]
    """For each requirement that the reader does not meet, a case that shows the failure."""
    not_run: str = ""
    """Reason why the reader was not run."""


def commands(python: str, node_modules: Path) -> dict[str, tuple[list[str], Path]]:
    """Return the command line and the working directory of each reader."""
    path = f"PYTHONPATH={FOLDER.parents[2]}"
    found = {
        name: (["env", path, python, "-m", f"{PACKAGE}.{module}"], ROOT)
        for name, module in PYTHON_CLIENTS.items()
    }
    node = shutil.which("node") or "node"
    script = str(FOLDER / "node_client.mjs")
    found |= {name: ([node, script, name], node_modules) for name in NODE_CLIENTS}
    found["EventSource of Chromium"] = ([sys.executable, "-m", f"{PACKAGE}.chromium_eventsource"], ROOT)
    return found


def program_name(name: str) -> str:
    """Return the end of the command line for a reader: the module of its adapter, or the argument of the script."""
    if name in NODE_CLIENTS:
        return f"node_client.mjs {name}"
    return PYTHON_CLIENTS.get(name, "chromium_eventsource")


def _command(program: str, check: str) -> str:
    return f"$ tidewire conformance --profile sse --client '{program}' --only {check}"


def judge_reader(name: str, command: list[str], folder: Path) -> ReaderRow:
    """Play all scenarios with a reader."""
    try:
        argv = ["env", "-C", str(folder), *command] if shutil.which("env") else command
        with ProgramAdapter(argv) as adapter:
            found = run(ScenarioPlan(name, lanes=LANES, budget=900), SCENARIOS, adapter)
            version = adapter.name
    except AdapterError as error:
        return ReaderRow(name, "", {}, {}, re.sub(r"\s+", " ", _reason(str(error))))
    outcomes: dict[str, Counter[str]] = {area: Counter() for area in AREAS}
    broken = {}
    for verdict in found.verdicts:
        outcomes[verdict.check.partition(".")[0]][verdict.outcome.value] += 1
        broken[verdict.check] = {each.requirement for each in verdict.broken}
    return ReaderRow(name, version, {area: dict(each) for area, each in outcomes.items()}, _examples(broken))


def _examples(broken: dict[str, set[str]]) -> dict[str, str]:
    """For each requirement that a reader does not meet, return a case that shows the failure.

    If a case reports several requirements, only one of them may be the cause. Such a case is used only if no case with
    fewer requirements reports one of them.

    Args:
        broken: Requirements that each case reports.
    """
    found: dict[str, str] = {}
    for check, rules in sorted(broken.items(), key=lambda each: len(each[1])):
        if len(rules) == 1 or not rules & found.keys():
            for rule in rules:
                found.setdefault(rule, check)
    return dict(sorted(found.items()))


def _reason(text: str) -> str:
    needs = re.search(r"this client needs [^:;(]+", text)
    return needs[0].strip() if needs else text[:200]


def reader_fault(reader: type[FaultyReader]) -> str:
    """Return why the proof fails for a faulty reader, or an empty string."""
    adapter = EventStreamReaderAdapter(reader)
    found = play(BY_NAME[reader.scenario], adapter)
    if reader.breaks not in {rule for finding in found.findings for rule in finding.rules}:
        return "not noticed"
    control = play(BY_NAME[reader.control], adapter) if reader.control else None
    return f"{reader.control} fails" if control and control.outcome is not Outcome.PASS else ""


def server_fault(server: StreamServer) -> str:
    """Return why the proof fails for a faulty or unusual server, or an empty string."""
    with running_stream_server(server.name) as url:
        report = judge_stream_server(EventStreamOptions(url=url), [*STREAM_CHECKS.values()])
    broken = {each.check for each in report.run.verdicts if each.broken}
    wanted = {server.check} - {""}
    if wanted - broken:
        return "not noticed"
    return f"{', '.join(sorted(broken - wanted))} fails" if broken - wanted else ""


def plain_reader_fault() -> str:
    """Return the scenarios that the plain reader fails."""
    with ThreadPoolExecutor(16) as pool:
        found = pool.map(lambda each: play(each, EventStreamReaderAdapter(PlainEventStreamReader)), SCENARIOS)
        return ", ".join(each.scenario.name for each in found if each.outcome is not Outcome.PASS)


def main(options: argparse.Namespace) -> int:
    """Run the proof, write the page, and return the exit code. A reader of another project never fails the proof."""
    with ThreadPoolExecutor(LANES) as pool:
        readers = dict(zip(FAULTY_READERS, pool.map(reader_fault, FAULTY_READERS.values()), strict=True))
        servers = dict(zip(STREAM_SERVERS, pool.map(server_fault, STREAM_SERVERS.values()), strict=True))
    faults = {name: fault for name, fault in (readers | servers).items() if fault}
    if plain := plain_reader_fault():
        faults["the plain reader"] = f"fails {plain}"
    for name, fault in faults.items():
        print(f"{name}: {fault}")
    if options.page:
        rows = [ReaderRow(**each) for each in json.loads(RESULTS.read_text(encoding="utf-8"))]
        return _write(rows, readers, servers, faults)
    earlier = rows_of_page(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    rows = []
    for name, (command, folder) in commands(options.python, options.node_modules).items():
        row = judge_reader(name, command, folder)
        print(f"{name}: {row.not_run or row.outcomes}", flush=True)
        if row.not_run and name in earlier:
            row = earlier[name]
            print(f"{name}: the page keeps the results of {row.version}", flush=True)
        rows.append(row)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    return _write(rows, readers, servers, faults)


def _write(
    rows: list[ReaderRow], readers: dict[str, str], servers: dict[str, str], faults: dict[str, str]
) -> int:
    PAGE.write_text(HEAD + "\n".join(page(rows, readers, servers)) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return int(bool(faults))


def page(rows: list[ReaderRow], readers: dict[str, str], servers: dict[str, str]) -> Iterator[str]:
    """Render the tables of the page."""
    framing = sum(scenario.area == "sse_framing" for scenario in SCENARIOS)
    yield f"There are {framing} cases of framing, and {len(SCENARIOS) - framing} of responses and reconnection."
    yield from ("", "| reader | framing: on time | late | failed | not judged | responses | reconnection |")
    yield "|---|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: (bool(row.not_run), -_count(row, "pass", "warn"), row.name)):
        if row.not_run:
            yield f"| {row.name} | *not run*: {row.not_run} | | | | | |"
            continue
        counts = (_count(row, each) for each in ("pass", "warn", "fail", "skipped"))
        responses, again = (_fraction(row, area) for area in AREAS[1:])
        yield f"| {row.version} | {' | '.join(map(str, counts))} | {responses} | {again} |"
    yield from ("", "### Requirements that a reader does not meet", "")
    yield "Each requirement has one case as an example. These commands play a case with a Python and a JavaScript reader:"
    yield from ("", "```text")
    yield "$ pip install '.[conformance]' httpx httpx-sse   # in a clone of this repository"
    yield _command(f"python3 -m {PACKAGE}.httpx_sse", "sse_framing.bom-at-the-start")
    yield "$ npm install eventsource"
    script = f"src/conformance/{PACKAGE.replace('.', '/')}/node_client.mjs"
    yield _command(f"node {script} eventsource", "sse_framing.id-stays-over-later-events")
    yield from (
        "```",
        "",
        "The output contains the bytes of the stream, the expected events and those of the reader. For another row, install",
        "the reader in the version of the row, and replace the end of the program and the case by those of the row.",
        "",
    )
    yield from ("| reader | program for `--client` | requirement | case for `--only` |", "|---|---|---|---|")
    for row in rows:
        program = f"`{program_name(row.name)}`"
        for rule, check in row.examples.items():
            level = " (SHOULD)" if specification.requirements()[rule].level == "SHOULD" else ""
            yield f"| {row.version} | {program} | {rule}{level} | `{check}` |"
    yield from ("", "## Faulty readers", "", "| reader | noticed by | breaks | |", "|---|---|---|---|")
    for name, fault in readers.items():
        reader = FAULTY_READERS[name]
        yield f"| {words_of(name)} | `{reader.scenario}` | {reader.breaks} | {fault or '✓'} |"
    yield from ("", "## Faulty servers", "", "| server | noticed by | breaks | |", "|---|---|---|---|")
    for name, fault in servers.items():
        server = STREAM_SERVERS[name]
        if server.check:
            yield f"| {server.description} | `{server.check}` | {server.requirement} | {fault or '✓'} |"
    yield from ("", "## Unusual servers that pass", "", "| server | |", "|---|---|")
    for name, fault in servers.items():
        if not STREAM_SERVERS[name].check:
            yield f"| {STREAM_SERVERS[name].description} | {fault or '✓'} |"


def rows_of_page(text: str) -> dict[str, ReaderRow]:
    """Return the results of the readers that a page shows. A row with an outdated number of cases is left out."""
    framing = sum(scenario.area == "sse_framing" for scenario in SCENARIOS)
    found = {}
    for name in (*PYTHON_CLIENTS, *NODE_CLIENTS, "EventSource of Chromium"):
        version = rf"((?:@[^/|]+/)?{re.escape(name)}(?: [^ |]+)?)"
        row = re.search(rf"^\| {version} \|((?: \d+ \|){{4}}) ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
        if row is None:
            continue
        counts = [int(each) for each in re.findall(r"\d+", row[2])]
        outcomes = {AREAS[0]: dict(zip(("pass", "warn", "fail", "skipped"), counts, strict=True))}
        for area, fraction in zip(AREAS[1:], (row[3], row[4]), strict=True):
            passed, judged = map(int, re.findall(r"\d+", fraction) or (0, 0))
            outcomes[area] = {"pass": passed, "fail": judged - passed}
        example = rf"^\| {re.escape(row[1])} \| `[^`]+` \| (TW-SSE-\d+)[^|]*\| `([^`]+)` \|$"
        if sum(counts) == framing:
            found[name] = ReaderRow(name, row[1], outcomes, dict(re.findall(example, text, re.MULTILINE)))
    return found


def _count(row: ReaderRow, *outcomes: str) -> int:
    return sum(row.outcomes.get("sse_framing", {}).get(each, 0) for each in outcomes)


def _fraction(row: ReaderRow, area: str) -> str:
    found = row.outcomes[area]
    judged = sum(found.values()) - found.get("skipped", 0)
    return f"{found.get('pass', 0)} of {judged}" if judged else "not offered"
