"""What a fault breaks beside its own area, with the reason; and faults that no suite can tell from outside.

A check that judges the same sentence, or is of the area of the check that has to notice, may find a fault as well. Any
other check must stay silent unless it stands here.
"""

from fnmatch import fnmatch

from conformance.suite.mutants import Mutant
from tidewire_conformance import registry

BESIDES: dict[str, tuple[str, ...]] = {}
"""By the name of the mutant: why, and the checks by their names, with wildcards."""

UNHEARD_OF: dict[str, str] = {}
"""Faults that were tried, and no sentence forbids, or no answer shows."""


def has_to_do_with(mutant: Mutant, name: str) -> bool:
    """Whether a check may find a mutant that another one has to find."""
    check = next(each for each in registry.checks() if each.name == name)
    same = name.partition(".")[0] == mutant.check.partition(".")[0] or mutant.sentence in check.sentences
    _, *patterns = BESIDES.get(mutant.name, ("",))
    return same or any(fnmatch(name, pattern) for pattern in patterns)
