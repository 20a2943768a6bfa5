"""Every mutant against the suite, and the page that tells what came of it: `make conformance`.

python kill_matrix.py                  all mutants; writes docs/reference/conformance-matrix.md
python kill_matrix.py NAME…            only these; writes nothing
python kill_matrix.py --shard 1/2      every second one, from the first; writes nothing
"""

import argparse
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS))

from conformance.suite.killing import is_killed, red, survey  # noqa: E402 - found beside this file
from conformance.suite.mutants import MUTANTS, Mutant  # noqa: E402
from conformance.suite.stage import Nursery  # noqa: E402
from tidewire_conformance import registry, specification  # noqa: E402

PAGE = TESTS.parent / "docs/reference/conformance-matrix.md"

NOT_RUN = "not run"

HEAD = """# What proves the conformance suite

Written by `make conformance`, which puts each of these servers before the suite. A wrong server is the reference server
with one hook, and is *noticed* where the check that is named finds the sentence that is named broken. An unusual server
breaks nothing, and is *left in peace* where the whole suite finds nothing broken.

"""


def main() -> int:
    """Run the mutants; 1 where one was not noticed, or a benign one was called broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--shard", default="1/1")
    options = parser.parse_args()
    part, parts = map(int, options.shard.split("/"))
    chosen = options.names or list(MUTANTS)[part - 1 :: parts]
    faults: dict[str, str] = {}
    with Nursery() as nursery:
        for name in chosen:
            began = time.monotonic()
            faults[name] = _fault(nursery, MUTANTS[name])
            print(
                f"{time.monotonic() - began:6.1f} s  {name}: {faults[name] or 'as it should be'}", flush=True
            )
    if len(chosen) == len(MUTANTS):
        PAGE.write_text(HEAD + _tables(faults), encoding="utf-8")
    return 1 if any(faults.values()) else 0


def _fault(nursery: Nursery, mutant: Mutant) -> str:
    report = survey(nursery, mutant)
    if mutant.check:
        return "" if is_killed(mutant, report) else "not noticed"
    return "; ".join(red(report))[:300]


def _tables(faults: dict[str, str]) -> str:
    wrong = [mutant for mutant in MUTANTS.values() if mutant.check]
    unusual = [mutant for mutant in MUTANTS.values() if not mutant.check]
    proved = {mutant.check for mutant in wrong}
    checks = registry.checks()
    sentences = {sentence for check in checks for sentence in check.sentences}
    rows = [
        f"- {len(wrong)} wrong servers, {sum(faults.get(mutant.name) == '' for mutant in wrong)} of them noticed",
        f"- {len(unusual)} unusual servers, {sum(faults.get(mutant.name) == '' for mutant in unusual)} of them left in peace",
        f"- {len(checks)} checks of {len(sentences)} sentences; {len(proved)} checks are proved by a wrong server",
        "",
        "## Wrong servers",
        "",
        "| server | breaks | noticed by | |",
        "|---|---|---|---|",
    ]
    for mutant in sorted(wrong, key=lambda mutant: (mutant.check, mutant.name)):
        rows.append(
            f"| {_cell(mutant.about)} | {mutant.sentence} | `{mutant.check}` | {_mark(faults.get(mutant.name, NOT_RUN))} |"
        )
    rows += ["", "## Unusual servers", "", "| server | |", "|---|---|"]
    rows += [f"| {_cell(mutant.about)} | {_mark(faults.get(mutant.name, NOT_RUN))} |" for mutant in unusual]
    rows += ["", "## Checks that no wrong server proves yet", "", "| check | judges |", "|---|---|"]
    rows += [
        f"| `{check.name}` | {', '.join(check.sentences)} |" for check in checks if check.name not in proved
    ]
    rows += [
        "",
        "## Sentences for servers that no check judges yet",
        "",
        "| sentence | level | |",
        "|---|---|---|",
    ]
    unseen = specification.unseen()
    for sentence in specification.sentences().values():
        if sentence.role != "client" and sentence.level != "MAY" and sentence.id not in sentences:
            rows.append(f"| {sentence.id} | {sentence.level} | {_cell(unseen.get(sentence.id, ''))} |")
    return "\n".join(rows) + "\n"


def _held(faults: dict[str, str], mutants: list[Mutant]) -> int:
    return sum(faults.get(mutant.name, NOT_RUN) == "" for mutant in mutants)


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def _mark(fault: str) -> str:
    return fault if fault == NOT_RUN else "yes" if not fault else f"**no** {_cell(fault)}"


if __name__ == "__main__":
    sys.exit(main())
