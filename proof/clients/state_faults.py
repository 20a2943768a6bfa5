"""Faulty clients with errors in columns, checks, digests or the state after a diff."""

import hashlib
import re
import unicodedata
from decimal import Decimal
from urllib.parse import unquote

from proof.clients.faulty_client import FaultyClient, changed
from proof.reimplementations.plain_requests import EndError
from proof.reimplementations.plain_state import MalformedError, State, demand

# ---- columns -----------------------------------------------------------------------------------------------------


class KeepsColumnsOfFirstSnapshot(FaultyClient):
    scenario, kind, breaks = "columns-of-the-epoch", "count", "TW-CLI-001"
    columns = None

    def advance(self, state, name, *, forward=True):
        self.columns = self.columns or state.columns
        state.columns = self.columns
        super().advance(state, name, forward=forward)


class AppendsBareStringToFirstColumn(FaultyClient):
    scenario, kind, breaks = "bare-string-for-two-columns", "never", "TW-DIF-073"
    state_type = changed(State, bare=lambda self, text: [["a", self.columns[0], text]])


class TruncatesLongRows(FaultyClient):
    scenario, kind, breaks = "row-of-another-length", "never", "TW-DIF-073"
    state_type = changed(State, row=lambda self, root, row: State.row(self, root, row[: len(self.columns)]))


class ConvertsNumbersInRowsToText(FaultyClient):
    scenario, kind, breaks = "number-in-a-row-for-a-text", "never", "TW-DIF-073"

    class Puts(State):
        def row(self, root, row):
            super().row(root, [str(row[0]), *row[1:]])


class FlattensArraysInRows(FaultyClient):
    """If a row contains an array, append the elements of the array instead of the array as one element."""

    scenario, kind, breaks = "rows-of-arrays", "order", "TW-DIF-073"

    class Spreads(State):
        def append(self, root, path, more):
            inner = isinstance(more, list) and more and isinstance(more[0], list)
            super().append(root, path, more[0] if inner else more)


class CreatesMissingColumns(FaultyClient):
    scenario, kind, breaks = "column-without-a-target", "never", "TW-DIF-073"

    class Makes(State):
        def bare(self, text):
            return [["s", "/items/0/value", {"text": text}]]


# ---- verification ------------------------------------------------------------------------------------------------


class IgnoresCheckLength(FaultyClient):
    scenario, kind, breaks = "failed-check-of-an-array", "never", "TW-DIF-046"
    state_type = changed(State, verify_length=lambda self, found, n: None)


class IgnoresCheckCrc(FaultyClient):
    scenario, kind, breaks = "failed-check", "never", "TW-DIF-047"
    state_type = changed(State, verify_crc=lambda self, found, crc: None)


class ReadsCrcAsSigned(FaultyClient):
    scenario, kind, breaks, control = "rollback", "count", "TW-DIF-047", "discovery"

    class Signs(State):
        def verify_crc(self, found, crc):
            super().verify_crc(found, crc if crc < 2**31 else crc - 2**32)


class VerifiesChecksBeforeOps(FaultyClient):
    scenario, kind, breaks = "rollback", "count", "TW-DIF-048"

    class Hastens(State):
        def ops_of(self, diff):
            ops, checks = super().ops_of(diff)
            self.verify(checks)
            return ops, []


class IgnoresChecksOfMissingPaths(FaultyClient):
    scenario, kind, breaks = "check-of-nothing", "never", "TW-DIF-050"

    class Passes(State):
        def verify(self, checks):
            for check in checks:
                try:
                    self.get(self.value, check[0])
                except MalformedError:
                    continue
                super().verify([check])


class RequiresChecks(FaultyClient):
    scenario, kind, breaks = "without-checks", "count", "TW-DIF-054"

    class Demands(State):
        def apply(self, diff):
            ops, checks = self.ops_of(diff)
            ends = any(op[:2] == ["s", "/items/0/status"] and op[2] == "succeeded" for op in ops)
            demand(checks or not ends, "the diff has no checks")
            return super().apply(diff)


class AcceptsSnapshotWithFinalStatus(FaultyClient):
    scenario, kind, breaks = "snapshot-of-an-end", "never", "TW-DIF-011"
    state_type = changed(State, running=frozenset({"queued", "running", "succeeded", "failed", "cancelled"}))


class EndsOnFinalStatus(FaultyClient):
    """Stop at a final status in the state instead of waiting for `done`."""

    scenario, kind, breaks = "diff-that-ends-the-job", "never", "TW-DIF-011"
    state_type = changed(State, running=frozenset({"queued", "running", "succeeded", "failed", "cancelled"}))

    def advance(self, state, name, *, forward=True):
        super().advance(state, name, forward=forward)
        if state.value["status"] == "succeeded":
            raise EndError("succeeded", value=self.last(), incomplete=False)


class AcceptsInvalidStateAfterDiff(FaultyClient):
    scenario, kind, breaks = "diff-that-breaks-the-state", "hung", "TW-DIF-070"
    state_type = changed(State, check=lambda self, state: None, verify_stable=lambda self, after: None)

    def deliver(self):
        if "items" in self.state.value:
            super().deliver()


class DigestsOnlyKnownMembers(FaultyClient):
    scenario, kind, breaks = "unknown-member-of-an-item", "count", "TW-DIF-056"

    class Forgets(State):
        def digest(self):
            known = {"status", "value", "error", "stable", "batch"}
            items = [{name: item[name] for name in known & item.keys()} for item in self.value["items"]]
            return hashlib.sha256(self.form(items).encode()).hexdigest()[:16]


class RoundsNumbersForTheDigest(FaultyClient):
    """Write a number with the fewest digits for which rounding to nearest gives the number, as a loop over `%.Ng` does."""

    scenario, kind, breaks = "numbers-at-the-edge", "count", "TW-DIF-056"

    class Rounds(State):
        def number(self, value):
            rounded = (f"{value:.{digits}g}" for digits in range(1, 18))
            text = next(text for text in rounded if float(text) == value)
            return super().number(value) if Decimal(text) == Decimal(repr(value)) else text


class CountsGraphemesInTruncation(FaultyClient):
    scenario, kind, breaks = "combining-characters", "count", "TW-DIF-031"

    class Counts(State):
        def truncate(self, root, path, n):
            old = self.get(root[""], path)
            for _ in range(n):
                old = re.sub(".[\u0300-\u036f]*\\Z", "", old, flags=re.DOTALL)
            self.put(root, f"/{path}", old)


class NormalizesUnicodeOfDeliveredTexts(FaultyClient):
    scenario, kind, breaks = "combining-characters", "value", "TW-CLI-052"

    def deliver_value(self, index, value, before):
        value, before = (unicodedata.normalize("NFC", one or "") for one in (value, before))
        super().deliver_value(index, value, before)


def merged(old, new):
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: merged(old.get(name), one) for name, one in new.items()}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [merged(*each) for each in zip(old, new, strict=True)]
    return new


class MergesSnapshotIntoState(FaultyClient):
    scenario, kind, breaks = "what-is-replaced-is-gone", "order", "TW-RES-031"

    def snapshot(self, name, data, *, has_id):
        before = self.state.value if self.state else None
        super().snapshot(name, data | {"state": merged(before, data["state"])}, has_id=has_id)


class MergesInsteadOfReplacing(FaultyClient):
    scenario, kind, breaks = "what-is-replaced-is-gone", "order", "TW-DIF-073"

    class Merges(State):
        def set(self, parent, token, value):
            old = parent.get(token) if isinstance(parent, dict) else None
            super().set(parent, token, merged(old, value))


class RejectsInsertAtTheEnd(FaultyClient):
    scenario, kind, breaks = "ops-at-their-edges", "count", "TW-DIF-073"

    class Refuses(State):
        def insert(self, parent, token, value):
            demand(int(token) < len(parent), "past the end")
            super().insert(parent, token, value)


class RejectsTruncationOfWholeText(FaultyClient):
    scenario, kind, breaks = "ops-at-their-edges", "count", "TW-DIF-073"

    class Refuses(State):
        def truncate(self, root, path, n):
            demand(n < len(self.get(root[""], path)), "the truncation removes everything")
            super().truncate(root, path, n)


class AppliesSetsFirst(FaultyClient):
    scenario, kind, breaks, appends_first = "ops-at-their-edges", "order", "TW-DIF-012", False

    @property
    def state_type(self):
        def ops_of(state, diff):
            ops, checks = State.ops_of(state, diff)
            return sorted(ops, key=lambda op: (op[0] == "s") == self.appends_first), checks

        return changed(State, ops_of=ops_of)


class AppliesAppendsFirst(AppliesSetsFirst):
    appends_first = True


class FlattensAppendedArrays(FaultyClient):
    scenario, kind, breaks = "ops-at-their-edges", "order", "TW-DIF-073"

    class Flattens(State):
        def append(self, root, path, more):
            flat = [*more[0], *more[1:]] if isinstance(more, list) and isinstance(more[0], list) else more
            super().append(root, path, flat)


class PercentDecodesPaths(FaultyClient):
    scenario, kind, breaks = "ops-at-their-edges", "order", "TW-DIF-073"
    state_type = changed(State, unescaped=lambda self, token: State.unescaped(self, unquote(token)))


class ComparesTrueAndOneAsEqual(FaultyClient):
    """Compare values as Python does, where true equals 1, so that a change from 1 to true is not delivered."""

    scenario, kind, breaks = "value-of-another-type", "value", "TW-CLI-052"
    same = staticmethod(lambda one, other: bool(one == other))


class ComparesTrueAndOneAsEqualInSnapshot(ComparesTrueAndOneAsEqual):
    scenario = "snapshot-of-another-type"


class AcceptsFragmentPaths(FaultyClient):
    scenario, kind, breaks = "path-of-a-fragment", "never", "TW-DIF-073"
    state_type = changed(
        State, place=lambda self, root, path: State.place(self, root, path.removeprefix("#"))
    )


class DoesNotUnescapeColumnPaths(FaultyClient):
    scenario, kind, breaks = "columns-with-escapes", "count", "TW-DIF-073"

    class Splits(State):
        def row(self, root, row):
            escaped, self.unescaped = self.unescaped, lambda token: token
            super().row(root, row)
            self.unescaped = escaped


class DoesNotUnescapeCheckPaths(FaultyClient):
    scenario, kind, breaks = "columns-with-escapes", "count", "TW-DIF-046"

    class Splits(State):
        def checked(self, path):
            escaped, self.unescaped = self.unescaped, lambda token: token
            found = super().checked(path)
            self.unescaped = escaped
            return found


class DeliversOnlyDiffsOfValues(FaultyClient):
    scenario, kind, breaks = "whole-state", "promptness", "TW-CLI-052"
    diff = ""

    def logged(self, event):
        self.diff = event.data
        return super().logged(event)

    def deliver(self):
        if "/items/0/value" in self.diff or self.diff.startswith('"') or '""' in self.diff:
            super().deliver()


class DoesNotReportRemovedText(FaultyClient):
    scenario, kind, breaks = "restart-without-a-value", "text", "TW-DIF-061"

    def difference(self, old, new):
        return super().difference(old, new) if new else (0, "")
