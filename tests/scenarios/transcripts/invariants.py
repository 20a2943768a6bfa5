"""Invariants of everything that a server sends, checked in every run of a transcript.

Each rule is one function in a module `*_invariants`, with the requirements that it checks.
"""

from scenarios.transcripts import answer_invariants, endpoint_invariants, stream_invariants
from scenarios.transcripts.record import RULES, Exchange, Run

__all__ = ["RULES", "Exchange", "Run", "violations"]

assert {answer_invariants, endpoint_invariants, stream_invariants}, "their rules enter themselves"


def violations(run: Run) -> list[str]:
    """Every violation of every rule, with the name of the rule and its requirements."""
    return [
        f"{name} ({', '.join(rule.requirements)}): {breach}"
        for name, rule in RULES.items()
        for breach in rule.judge(run)
    ]
