"""Wrong clients: what they take for proved, and for a number, a row or a value at all."""

from conformance.plain_state import State
from conformance.wrong_clients import WrongClient


class TakesAShortRow(WrongClient):
    scenario, kind, breaks = "row-that-is-too-short", "never", "TW-DIF-037"

    class Takes(State):
        def row(self, root, row):
            columns, self.columns = self.columns, self.columns[: len(row)]
            super().row(root, row)
            self.columns = columns

    state_type = Takes
