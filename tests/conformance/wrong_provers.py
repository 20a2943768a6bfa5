"""Wrong clients: what they take for proved, and for a number, a row or a value at all."""

from conformance.plain_state import State
from conformance.wrong_clients import WrongClient
from conformance.wrong_folders import folds


class TakesAShortRow(WrongClient):
    scenario, kind, breaks = "row-that-is-too-short", "never", "TW-DIF-037"

    class Takes(State):
        def row(self, root, row):
            columns, self.columns = self.columns, self.columns[: len(row)]
            super().row(root, row)
            self.columns = columns

    state_type = Takes


class VerifiesTheFirstCheckAlone(WrongClient):
    scenario, kind, breaks = "one-check-of-three-fails", "never", "TW-DIF-053"
    state_type = folds(verify=lambda self, checks: State.verify(self, checks[:1]))


class VerifiesTheLastCheckAlone(WrongClient):
    scenario, kind, breaks = "one-check-of-three-fails", "never", "TW-DIF-053"
    state_type = folds(verify=lambda self, checks: State.verify(self, checks[-1:]))
