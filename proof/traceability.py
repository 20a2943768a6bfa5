"""Traceability matrix: the checks and scenarios that judge a requirement, and the faults that test these checks.

Writes the suite's traceability.json and docs/proof/requirements.md. Both files are derived from the registries within
seconds, without running the suite. A check is a function of the suite (`resume.malformed_cursor_returns_400`). A scenario
is played with a client (`cuts.silence`). A faulty server is listed at the requirement that it breaks. A faulty client is
listed at the first requirement of the scenario that must notice the client's fault.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from proof.clients.faulty_client import all_faulty_clients
from proof.event_streams.faulty_readers import FAULTY_READERS
from proof.event_streams.stream_servers import STREAM_SERVERS
from proof.kill_matrix import ROOT, cell
from proof.servers.faults import FAULTY_SERVERS
from proof.unjudged_requirements import REASONS, unseen
from tidewire_conformance import registry, specification
from tidewire_conformance.clients.scenarios import load_all
from tidewire_conformance.clients.scenarios.event_stream_scenarios import load_event_stream_scenarios
from tidewire_conformance.clients.scenarios.scenario_to_verdict import name_of
from tidewire_conformance.event_streams.stream_checks import STREAM_CHECKS
from tidewire_conformance.specification import Requirement

TRACEABILITY = ROOT / "src/conformance/tidewire_conformance/traceability.json"
PAGE = ROOT / "docs/proof/requirements.md"
COMMAND = "python -m proof traceability"
MAX_NAMES = 3
"""Maximum number of checks, and of faults, that the page names for a requirement."""

HEAD = """# The requirements with their checks

`python -m proof traceability` generates this page, together with `traceability.json` of the conformance suite. For each
requirement, a row lists the checks of servers and the scenarios for clients (`client:`) that judge the requirement. It
also lists faulty servers and clients that break the requirement; `make proof` verifies that the suite reports each of
them. A check may judge several requirements. *Its check* in the last column means that no faulty server or
client breaks this requirement, but that the check or scenario of the requirement was tested with one that breaks another
requirement. To run the checks of one requirement, use a command such as `tidewire conformance URL --only TW-RES-019`.

"""


@dataclass(frozen=True)
class RequirementTrace:
    """A requirement with its checks and scenarios, and with the faulty implementations that test them."""

    requirement: Requirement
    checks: tuple[str, ...]
    scenarios: tuple[str, ...]
    faulty_servers: tuple[str, ...]
    """Names of the faulty servers that break the requirement."""
    faulty_clients: tuple[str, ...]
    is_proved_by_its_check: bool
    """Whether one of its checks or scenarios is tested with a fault that breaks another requirement."""
    reason: str
    """Reason why no check or scenario judges the requirement; empty if one does."""

    @property
    def judges(self) -> tuple[str, ...]:
        """Names of the checks, and of the scenarios as `client:NAME`."""
        return (*self.checks, *(f"client:{name}" for name in self.scenarios))

    @property
    def faulty(self) -> tuple[str, ...]:
        """Names of the faulty servers, and of the faulty clients as `client:NAME`."""
        return (*self.faulty_servers, *(f"client:{name}" for name in self.faulty_clients))

    @property
    def is_covered(self) -> bool:
        """Whether a check or scenario judges the requirement, or a reason explains why there is no check or scenario."""
        return bool(self.judges or self.reason or self.requirement.level == "MAY")

    @property
    def is_proved(self) -> bool:
        return bool(self.faulty) or self.is_proved_by_its_check


def traces() -> list[RequirementTrace]:
    """Build the traceability of all requirements, in the order of the chapters."""
    checks: dict[str, list[str]] = {}
    for check in registry.checks():
        for name in check.requirements:
            checks.setdefault(name, []).append(check.name)
    for each in STREAM_CHECKS.values():
        for name in each.requirements:
            checks.setdefault(name, []).append(each.name)
    known = {scenario.name: scenario for scenario in load_all()}
    event_streams = load_event_stream_scenarios()
    scenarios: dict[str, list[str]] = {}
    for scenario in (*known.values(), *event_streams):
        for name in scenario.requirements:
            scenarios.setdefault(name, []).append(name_of(scenario))
    servers: dict[str, list[str]] = {}
    proved = set()
    for server in FAULTY_SERVERS.values():
        if not server.is_benign:
            servers.setdefault(server.requirement, []).append(server.name)
            proved.add(server.check)
    for stream_server in STREAM_SERVERS.values():
        if stream_server.check:
            servers.setdefault(stream_server.requirement, []).append(stream_server.name)
            proved.add(stream_server.check)
    clients: dict[str, list[str]] = {}
    for client in all_faulty_clients():
        scenario = known[client.scenario]
        clients.setdefault(scenario.requirements[0], []).append(client.__name__)
        proved.add(name_of(scenario))
    for reader in FAULTY_READERS.values():
        clients.setdefault(reader.breaks, []).append(reader.__name__)
    reasons = unseen() | REASONS
    return [
        RequirementTrace(
            requirement,
            *(tuple(sorted(names.get(name, ()))) for names in (checks, scenarios, servers, clients)),
            is_proved_by_its_check=not proved.isdisjoint([*checks.get(name, ()), *scenarios.get(name, ())]),
            reason=reasons.get(name, ""),
        )
        for name, requirement in specification.requirements().items()
    ]


def traceability_json(found: list[RequirementTrace]) -> str:
    """Render traceability.json."""
    members = ("checks", "scenarios", "faulty_servers", "faulty_clients")
    entries = {trace.requirement.id: {name: [*getattr(trace, name)] for name in members} for trace in found}
    return json.dumps(entries, ensure_ascii=False, indent=1) + "\n"


def page(found: list[RequirementTrace]) -> str:
    """Render docs/proof/requirements.md."""
    return HEAD + "\n".join(_page(found)) + "\n"


def _page(found: list[RequirementTrace]) -> Iterator[str]:
    judged = [trace for trace in found if trace.judges]
    count = _count(judged, "judges")
    yield f"- There are {len(found)} requirements. Together, {count} checks and scenarios judge {len(judged)} of them."
    broken = sum(bool(each.faulty) for each in found)
    yield f"- Together, {_count(found, 'faulty')} faulty servers and clients break {broken} of the requirements."
    reasoned = sum(not each.judges and bool(each.reason) for each in found)
    yield f"- {reasoned} requirements have neither a check nor a scenario, for the reason that their row states in italics. All other requirements without a check or a scenario grant a choice (MAY)."
    for chapter, traces_of in groupby(found, key=lambda trace: trace.requirement.chapter):
        yield from ("", f"## [{chapter}](../../spec/{chapter}.md)", "")
        yield from ("| requirement | level | role | judged by | tested with |", "|---|---|---|---|---|")
        for trace in traces_of:
            one = trace.requirement
            text = f"**{one.id}** {cell(one.text)}"
            yield f"| {text} | {one.level} | {one.role} | {_judged_by(trace)} | {_proved_by(trace)} |"


def _count(found: list[RequirementTrace], member: str) -> int:
    return len({name for trace in found for name in getattr(trace, member)})


def _judged_by(trace: RequirementTrace) -> str:
    return "<br>".join(filter(None, [_names(trace.judges), trace.reason and f"*{cell(trace.reason)}*"]))


def _proved_by(trace: RequirementTrace) -> str:
    return _names(trace.faulty) or ("*its check*" if trace.is_proved_by_its_check else "")


def _names(names: tuple[str, ...]) -> str:
    more = f" … {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return "<br>".join(f"`{name}`" for name in names[:MAX_NAMES]) + more


def main(*, check: bool = False) -> int:
    """Write both files. With `check`, write nothing and return 1 if a file is outdated."""
    found = traces()
    now = {TRACEABILITY: traceability_json(found), PAGE: page(found)}
    outdated = [
        file for file, text in now.items() if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    for file in outdated:
        where = file.relative_to(ROOT)
        print(f"{where} is outdated: run `{COMMAND}`" if check else f"wrote {where}")
        if not check:
            file.write_text(now[file], encoding="utf-8")
    return int(check and bool(outdated))
