"""Every mutant against the whole suite, and the page that tells what came of it: `make conformance`.

python kill_matrix.py                  all mutants, six at a time; writes docs/reference/conformance-matrix.md and, whole, as JSON
python kill_matrix.py NAME…            only these; writes nothing
python kill_matrix.py --at-once 2      two at a time
python kill_matrix.py --merge NAME…    these again, and the page of them and of what the last run found
python kill_matrix.py --page           the page anew, of what the last run found
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS))

from conformance.suite.besides import BESIDES, UNHEARD_OF, has_to_do_with  # noqa: E402
from conformance.suite.killing import is_killed, reds, survey  # noqa: E402 - found beside this file
from conformance.suite.mutants import MUTANTS, Mutant  # noqa: E402
from conformance.suite.stage import Nursery  # noqa: E402
from tidewire_conformance import registry, specification  # noqa: E402

PAGE = TESTS.parent / "docs/reference/conformance-matrix.md"
WHOLE = TESTS.parent / "bench/results/conformance-matrix.json"
AT_ONCE = 6
"""Mutants that are judged at a time: half of the time of each is waiting."""

HEAD = """# What proves the conformance suite

Written by `make conformance`, which puts each of these servers before the whole suite. A wrong server is the reference
server with one hook. It is *noticed* where the check that is named finds the sentence that is named broken, and where
no check of another area finds anything, apart from those that are said to. An unusual server breaks nothing, and is
*left in peace* where the whole suite finds nothing broken.

"""


@dataclass(frozen=True)
class Row:
    """What the suite said of one mutant."""

    name: str
    fault: str
    """What is not as it has to be; empty where all is."""
    red: dict[str, str]
    """Checks that found something, or could not judge, and what."""
    seconds: float


def main() -> int:
    """Run the mutants; 1 where one is not as it has to be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    names = [] if options.page else options.names or _longest_first()
    began = time.monotonic()
    rows = []
    with ProcessPoolExecutor(options.at_once, initializer=_open) as pool:
        for row in pool.map(_row, names):
            print(f"{row.seconds:6.1f} s  {row.name}: {row.fault or 'as it should be'}", flush=True)
            rows.append(row)
    print(f"{len(rows)} servers in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if options.page or options.merge:
        again = {row.name for row in rows}
        rows += [row for row in _before() if row.name not in again]
    if options.page or options.merge or not options.names:
        WHOLE.parent.mkdir(exist_ok=True)
        WHOLE.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
        PAGE.write_text(HEAD + "\n".join(_page(rows)) + "\n", encoding="utf-8")
    bad = [row for row in rows if row.fault]
    print(*(f"{row.name}: {row.fault}" for row in bad), sep="\n")
    return 1 if bad else 0


def _longest_first() -> list[str]:
    """All of them, so that none that takes long is left alone at the end."""
    known = {row.name: row.seconds for row in _before()} if WHOLE.exists() else {}
    return sorted(MUTANTS, key=lambda name: -known.get(name, 0.0))


def _before() -> list[Row]:
    """What the last run found, judged anew."""
    rows = json.loads(WHOLE.read_text(encoding="utf-8"))
    found = [(MUTANTS[each["name"]], each) for each in rows if each["name"] in MUTANTS]
    return [
        Row(mutant.name, _fault(mutant, each["red"]), each["red"], each["seconds"]) for mutant, each in found
    ]


_NURSERY: list[Nursery] = []


def _open() -> None:
    """Once in each process of the pool; it ends with it."""
    _NURSERY.append(Nursery().__enter__())


def _row(name: str) -> Row:
    began = time.monotonic()
    mutant = MUTANTS[name]
    report = survey(_NURSERY[0], mutant, whole=True)
    red = reds(report, warnings=bool(mutant.check))
    if not mutant.check and report.run.cut_short:
        red["the run"] = report.run.cut_short
    if mutant.check and not is_killed(mutant, report):
        # What holds up each check leaves no time for the last ones: they are asked by themselves.
        red.pop(mutant.check, None)
        report = survey(_NURSERY[0], mutant)
        if is_killed(mutant, report):
            red[mutant.check] = reds(report, warnings=True)[mutant.check]
    return Row(name, _fault(mutant, red), red, time.monotonic() - began)


def _fault(mutant: Mutant, red: dict[str, str]) -> str:
    if not mutant.check:
        return "; ".join(f"{name}: {what}" for name, what in red.items())[:300]
    if mutant.check not in red:
        return "not noticed"
    alone = [name for name in red if not has_to_do_with(mutant, name)]
    return f"found by {', '.join(alone)} as well" if alone else ""


def _page(rows: list[Row]) -> Iterator[str]:
    found = {row.name: row for row in rows}
    wrong = [mutant for mutant in MUTANTS.values() if mutant.check]
    unusual = [mutant for mutant in MUTANTS.values() if not mutant.check]
    checks = registry.checks()
    sentences = {sentence for check in checks for sentence in check.sentences}
    proved = {mutant.check for mutant in wrong}
    yield f"- {len(wrong)} wrong servers, {_held(found, wrong)} of them noticed, and for no other reason"
    yield f"- {len(unusual)} unusual servers, {_held(found, unusual)} of them left in peace"
    yield f"- {len(checks)} checks of {len(sentences)} sentences; {len(proved)} checks are proved by a wrong server"
    yield from (
        "",
        "## Wrong servers",
        "",
        "| server | breaks | noticed by | and by | |",
        "|---|---|---|---|---|",
    )
    for mutant in sorted(wrong, key=lambda mutant: (mutant.check, mutant.name)):
        others = (
            [name for name in found[mutant.name].red if name != mutant.check] if mutant.name in found else []
        )
        yield (
            f"| {_cell(mutant.about)} | {mutant.sentence} | `{mutant.check}` | {len(others) or ''} "
            f"| {_mark(found.get(mutant.name))} |"
        )
    yield from (
        "",
        "*And by* counts further checks that find it: those of its own area, of its own sentence, and those that follow.",
    )
    yield from (
        "",
        "## What a fault breaks in other areas",
        "",
        "| server | is found there, since |",
        "|---|---|",
    )
    yield from (f"| {_cell(MUTANTS[name].about)} | {_cell(why)} |" for name, (why, *_) in BESIDES.items())
    yield from ("", "## Unusual servers", "", "| server | |", "|---|---|")
    yield from (f"| {_cell(mutant.about)} | {_mark(found.get(mutant.name))} |" for mutant in unusual)
    yield from ("", "## Wrong servers that cannot be told", "", "| server | why |", "|---|---|")
    yield from (f"| {_cell(about)} | {_cell(why)} |" for about, why in UNHEARD_OF.items())
    yield from (
        "",
        "## Sentences for servers that no check judges yet",
        "",
        "| sentence | level | |",
        "|---|---|---|",
    )
    unseen = specification.unseen()
    for sentence in specification.sentences().values():
        if sentence.role != "client" and sentence.level != "MAY" and sentence.id not in sentences:
            yield f"| {sentence.id} | {sentence.level} | {_cell(unseen.get(sentence.id, ''))} |"


def _held(found: dict[str, Row], mutants: list[Mutant]) -> int:
    return sum(mutant.name in found and not found[mutant.name].fault for mutant in mutants)


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def _mark(row: Row | None) -> str:
    return "not run" if row is None else f"**no** {_cell(row.fault)}" if row.fault else "yes"


if __name__ == "__main__":
    sys.exit(main())
