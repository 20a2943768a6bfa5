"""Faulty clients that accept invalid checks, numbers, rows, ids or values."""

import contextlib
import json
import re

from proof.clients.faulty_client import FaultyClient, changed
from proof.reimplementations.plain_state import Json, State, demand


class AcceptsShortRow(FaultyClient):
    scenario, kind, breaks = "row-that-is-too-short", "never", "TW-DIF-073"

    class Takes(State):
        def row(self, root, row):
            columns, self.columns = self.columns, self.columns[: len(row)]
            super().row(root, row)
            self.columns = columns


class VerifiesOnlyFirstCheck(FaultyClient):
    scenario, kind, breaks = "one-check-of-three-fails", "never", "TW-DIF-053"
    state_type = changed(State, verify=lambda self, checks: State.verify(self, checks[:1]))


class VerifiesOnlyLastCheck(FaultyClient):
    scenario, kind, breaks = "one-check-of-three-fails", "never", "TW-DIF-053"
    state_type = changed(State, verify=lambda self, checks: State.verify(self, checks[-1:]))


class AcceptsNonAsciiDigitsInIndexes(FaultyClient):
    """Accept digits of any script in an index, as `\\d` does."""

    scenario, kind, breaks = "index-in-other-digits", "never", "TW-DIF-073"

    class Reads(State):
        def index(self, token):
            demand(re.fullmatch(r"0|[1-9]\d{0,8}", token), "an index")
            return int(token)


class AcceptsNonAsciiDigitsInIds(FaultyClient):
    scenario, kind, breaks = "id-against-the-grammar-digits", "never", "TW-CLI-030"

    def logged(self, event):
        if re.fullmatch(r"[1-9]\d{0,9}-[1-9]\d{0,14}", event.id):
            event.id = "-".join(map(str, map(int, event.id.split("-"))))
        return super().logged(event)


class TruncatesByTrueAsOne(FaultyClient):
    scenario, kind, breaks = "truncation-by-true", "never", "TW-DIF-073"
    state_type = changed(State, truncate=lambda self, root, path, n: State.truncate(self, root, path, int(n)))


class ReadsNullBaseAsPreviousId(FaultyClient):
    scenario, kind, breaks = "base-that-is-null", "never", "TW-DIF-073"

    def named_base(self, data, seq):
        return seq - 1 if data["on"] is None else super().named_base(data, seq)


class ReadsNullChecksAsAbsent(FaultyClient):
    scenario, kind, breaks = "checks-that-are-null", "never", "TW-DIF-073"

    class Takes(State):
        def ops_of(self, diff):
            if isinstance(diff, dict):
                diff = {name: one for name, one in diff.items() if one is not None}
            return super().ops_of(diff)


class ReadsMissingOperandAsNull(FaultyClient):
    """Read a missing operand as null, as JavaScript reads a missing array element as undefined."""

    scenario, kind, breaks = "op-that-lacks-its-value", "never", "TW-DIF-073"

    class Sets(State):
        def op(self, root, op):
            super().op(root, [*op, None] if op[0] == "s" and len(op) == 2 else op)


class AppendsBareStringToArray(FaultyClient):
    scenario, kind, breaks = "bare-string-for-an-array", "never", "TW-DIF-073"
    state_type = changed(State, bare=lambda self, text: [["r", text]])


class VerifiesStableOnlyOfWholeValues(FaultyClient):
    scenario, kind, breaks = "stable-of-a-member-is-broken", "never", "TW-DIF-060"

    class Holds(State):
        def verify_stable(self, after):
            if any("" in item.get("stable", {}) for item in self.value["items"]):
                super().verify_stable(after)


class VerifiesStableInUtf16Units(FaultyClient):
    scenario, kind, breaks = "stable-of-a-member-is-broken", "never", "TW-DIF-060"

    class Holds(State):
        def verify_stable(self, after):
            for old, new in zip(self.value["items"], after.value["items"], strict=True):
                for path, n in old.get("stable", {}).items():
                    texts = (self.get(item["value"], path).encode("utf-16-le") for item in (old, new))
                    demand(len({text[: 2 * n] for text in texts}) == 1, "a breach of stable")
                    self.verify_not_lowered(new, path, n)


class AcceptsRemovalOfStable(FaultyClient):
    scenario, kind, breaks = "stable-is-taken-back", "never", "TW-DIF-060"

    class Lets(State):
        def verify_not_lowered(self, new, path, n):
            if path in new.get("stable", {}):
                super().verify_not_lowered(new, path, n)


class ReadsZeroAsEmptyDiff(FaultyClient):
    """Accept 0 as an empty diff, as in a language that treats 0 as empty."""

    scenario, kind, breaks = "number-as-a-diff", "never", "TW-DIF-074"
    state_type = changed(State, ops_of=lambda self, diff: ([], []) if diff == 0 else State.ops_of(self, diff))


class AcceptsUnknownSnapshotReason(FaultyClient):
    scenario, kind, breaks = "snapshot-for-an-unknown-reason", "never", "TW-CLI-030"

    def snapshot(self, name, data, *, has_id):
        self.reasons = {data.get("reason")}
        super().snapshot(name, data, has_id=has_id)


class DoesNotValidateQueueEvents(FaultyClient):
    scenario, kind, breaks, judged = "place-that-is-a-text", "never", "TW-FRM-075", "queue"

    def receive(self, event):
        if event.type == self.judged:
            self.parse_object(event.data)
            return None
        return super().receive(event)


class DoesNotValidateProgressEvents(DoesNotValidateQueueEvents):
    scenario, judged = "progress-that-is-a-text", "progress"


class AcceptsNegativeGoawayWait(FaultyClient):
    scenario, kind, breaks = "goaway-with-a-wait-below-zero", "cursor", "TW-FRM-075"

    def goaway(self, data):
        super().goaway(data | {"retry_ms": abs(data["retry_ms"])})


class AcceptsFailureWithoutError(FaultyClient):
    scenario, kind, breaks = "done-that-failed-without-an-error", "count", "TW-FRM-076"

    def verify(self, done):
        super().verify({"error": {"code": "internal", "title": "", "status": 500}, **done})


class AcceptsTrueAsLength(FaultyClient):
    scenario, kind, breaks = "length-that-is-true", "never", "TW-DIF-046"
    state_type = changed(
        State, verify_length=lambda self, found, n: demand(len(found) == n, "a failed check: length")
    )


class AcceptsAnyErrorValue(FaultyClient):
    scenario, kind, breaks = "error-that-is-a-text", "never", "TW-DIF-070"
    state_type = changed(State, is_problem=staticmethod(lambda value: True))


class AcceptsTabsInStrings(FaultyClient):
    """Parse JSON leniently and accept tabs in strings."""

    scenario, kind, breaks = "json-as-some-readers-take-it", "never", "TW-OVR-001"

    @property
    def json(self):
        class Mends(Json):
            @classmethod
            def parse(cls, text):
                return super().parse(self.mended(text))

        return Mends

    def mended(self, text):
        return text.replace("\t", "\\t")


class IgnoresDataAfterJson(AcceptsTabsInStrings):
    def mended(self, text):
        with contextlib.suppress(ValueError):
            return text[: json.JSONDecoder().raw_decode(text)[1]]
        return text


class AcceptsTrailingCommas(AcceptsTabsInStrings):
    def mended(self, text):
        return re.sub(r",([]}])", r"\1", text)


class AcceptsSignsInIds(FaultyClient):
    scenario, kind, breaks = "id-against-the-grammar-sign", "never", "TW-CLI-030"

    def logged(self, event):
        with contextlib.suppress(ValueError):
            epoch, seq = map(int, event.id.split("-"))
            event.id = f"{epoch}-{seq}"
        return super().logged(event)


class AcceptsUnderscoresInIds(AcceptsSignsInIds):
    scenario = "id-against-the-grammar-underscore"


class AcceptsEpochZero(FaultyClient):
    scenario, kind, breaks = "id-against-the-grammar-zero", "never", "TW-CLI-030"

    def logged(self, event):
        event.id = event.id.replace("0-", "10-") if event.id.startswith("0-") else event.id
        return super().logged(event)
