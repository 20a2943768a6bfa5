"""A sentence, its checks, the wrong servers and clients that prove them: `make conformance`, or python triangle.py.

Fills `checks` and `mutants` of spec/requirements.json, and writes docs/reference/conformance-requirements.md. A check is
one of a server (`resume.a_cursor_that_is_no_id_is_refused`) or a scenario (`client:cuts.silence`). A wrong server stands
at the sentence that it breaks, a wrong client at the first sentence of the scenario that has to notice it.

python triangle.py              write both
python triangle.py --check      write nothing; 1 where one of them says something else
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS))

from conformance.suite.mutants import MUTANTS  # noqa: E402 - found beside this file
from conformance.suite.unjudged import REASONS  # noqa: E402
from conformance.wrong_clients import all_wrong  # noqa: E402
from tidewire_conformance import registry, specification  # noqa: E402
from tidewire_conformance.client_mode.verdicts import name_of  # noqa: E402
from tidewire_conformance.player import load_all  # noqa: E402
from tidewire_conformance.specification import Sentence  # noqa: E402

REQUIREMENTS = TESTS.parent / "spec/requirements.json"
PAGE = TESTS.parent / "docs/reference/conformance-requirements.md"
SHOWN = 3
"""Checks and mutants of one sentence that the page names."""

HEAD = """# The requirements with their checks

Written by `python tests/conformance/suite/triangle.py`, as are `checks` and `mutants` of
[requirements.json](../../spec/requirements.json). For each sentence: the checks of a server and the scenarios for a client
(`client:`) that judge it, and the wrong servers and clients that show that they can fail. *By its check*: a wrong server
breaks another sentence of the same check. `tidewire conformance URL --only TW-RES-019` runs what judges one sentence.

"""


@dataclass(frozen=True)
class Corner:
    """One sentence, with what belongs to it."""

    sentence: Sentence
    checks: tuple[str, ...]
    mutants: tuple[str, ...]
    """That break it."""
    is_proved_beside: bool
    """Whether a check of it is proved by a mutant of another sentence."""
    reason: str
    """Why nothing judges it, where nothing has to."""

    @property
    def is_closed(self) -> bool:
        """Whether something judges it, or a reason is written why nothing does."""
        return bool(self.checks or self.reason or self.sentence.level == "MAY")

    @property
    def is_proved(self) -> bool:
        return bool(self.mutants) or self.is_proved_beside


def corners() -> list[Corner]:
    """All sentences, in the order of the chapters."""
    checks: dict[str, list[str]] = {}
    for check in registry.checks():
        for name in check.sentences:
            checks.setdefault(name, []).append(check.name)
    scenarios = {scenario.name: scenario for scenario in load_all()}
    for scenario in scenarios.values():
        for name in scenario.requirements:
            checks.setdefault(name, []).append(f"client:{name_of(scenario)}")
    mutants: dict[str, list[str]] = {}
    proved = set()
    for mutant in MUTANTS.values():
        if mutant.check:
            mutants.setdefault(mutant.sentence, []).append(mutant.name)
            proved.add(mutant.check)
    for client in all_wrong():
        scenario = scenarios[client.scenario]
        mutants.setdefault(scenario.requirements[0], []).append(f"client:{client.__name__}")
        proved.add(f"client:{name_of(scenario)}")
    reasons = specification.unseen() | REASONS
    return [
        Corner(
            sentence,
            tuple(sorted(checks.get(name, ()))),
            tuple(sorted(mutants.get(name, ()))),
            not proved.isdisjoint(checks.get(name, ())),
            reasons.get(name, ""),
        )
        for name, sentence in specification.sentences().items()
    ]


def requirements_json(found: list[Corner], old: str) -> str:
    """requirements.json with its `checks` and `mutants`."""
    by_name = {corner.sentence.id: corner for corner in found}
    entries = json.loads(old)
    for entry in entries:
        corner = by_name[entry["id"]]
        entry |= {"checks": [*corner.checks], "mutants": [*corner.mutants]}
    return json.dumps(entries, ensure_ascii=False, indent=1) + "\n"


def page(found: list[Corner]) -> str:
    """The page of the documentation."""
    return HEAD + "\n".join(_page(found)) + "\n"


def _page(found: list[Corner]) -> Iterator[str]:
    judged = [corner for corner in found if corner.checks]
    yield f"- {len(found)} sentences, {len(judged)} of them judged by {_count(judged, 'checks')} checks and scenarios"
    yield f"- {_count(found, 'mutants')} wrong servers and clients break {sum(bool(each.mutants) for each in found)} of them"
    reasoned = sum(not each.checks and bool(each.reason) for each in found)
    yield f"- {reasoned} are judged by nothing here, for a reason that is given; others of these grant a choice (MAY)"
    for chapter, corners_of in groupby(found, key=lambda corner: corner.sentence.chapter):
        yield from ("", f"## [{chapter}](../../spec/{chapter}.md)", "")
        yield from ("| sentence | | for | judged by | proved by |", "|---|---|---|---|---|")
        for corner in corners_of:
            sentence = corner.sentence
            text = f"**{sentence.id}** {_cell(sentence.text)}"
            yield f"| {text} | {sentence.level} | {sentence.role} | {_judged_by(corner)} | {_proved_by(corner)} |"


def _count(found: list[Corner], member: str) -> int:
    return len({name for corner in found for name in getattr(corner, member)})


def _judged_by(corner: Corner) -> str:
    return "<br>".join(filter(None, [_names(corner.checks), corner.reason and f"*{_cell(corner.reason)}*"]))


def _proved_by(corner: Corner) -> str:
    return _names(corner.mutants) or ("*by its check*" if corner.is_proved_beside else "")


def _names(names: tuple[str, ...]) -> str:
    more = f" … {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "<br>".join(f"`{name}`" for name in names[:SHOWN]) + more


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def main() -> int:
    """Write, or compare."""
    found = corners()
    now = {
        REQUIREMENTS: requirements_json(found, REQUIREMENTS.read_text(encoding="utf-8")),
        PAGE: page(found),
    }
    drifted = [
        file for file, text in now.items() if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    for file in drifted:
        print(
            f"{file.name} {'has drifted: run python tests/conformance/suite/triangle.py' if '--check' in sys.argv else 'is written anew'}"
        )
        if "--check" not in sys.argv:
            file.write_text(now[file], encoding="utf-8")
    return int("--check" in sys.argv and bool(drifted))


if __name__ == "__main__":
    sys.exit(main())
