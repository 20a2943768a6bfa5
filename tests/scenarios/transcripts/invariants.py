"""What holds for all that a server sends, whatever it is asked: judged over every run of a transcript.

One rule a function, with the sentences of the specification that it judges, in the files `*_invariants`.
"""

from scenarios.transcripts import answer_invariants, endpoint_invariants, stream_invariants
from scenarios.transcripts.record import RULES, Run, Talk

__all__ = ["RULES", "Run", "Talk", "breaches_of"]

assert {answer_invariants, endpoint_invariants, stream_invariants}, "their rules enter themselves"


def breaches_of(run: Run) -> list[str]:
    """Every breach of every rule, with the name of the rule and its sentences."""
    return [
        f"{name} ({', '.join(rule.sentences)}): {breach}"
        for name, rule in RULES.items()
        for breach in rule.judge(run)
    ]
