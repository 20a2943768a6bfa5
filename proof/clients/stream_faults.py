"""Faulty clients with errors in event streams, event ids, diffs or the handling of protocol errors."""

import contextlib
import json
import re

from proof.clients.faulty_client import FaultyClient, changed
from proof.reimplementations.plain_client import id_key
from proof.reimplementations.plain_requests import EndError
from proof.reimplementations.plain_state import MAX_UNFINISHED_BYTES, Decoder, Event, Json, State, demand

# ---- framing -------------------------------------------------------------------------------------------------


class SplitsAtUnicodeLineEnds(FaultyClient):
    scenario, kind = "line-ends-of-other-standards", "count"
    decoder = changed(Decoder, line_end=re.compile(rb"\r\n|\r|\n|\xe2\x80\xa8|\xe2\x80\xa9|\xc2\x85"))


class DispatchesUnfinishedEvent(FaultyClient):
    scenario, kind = "cut-before-the-empty-line", "cursor"
    decoder = changed(Decoder, end=lambda self: self.line(b"".join(self.pieces)) + self.line(b""))


class LosesEventAfterByteOrderMark(FaultyClient):
    scenario, kind = "byte-order-mark", "count"
    decoder = changed(Decoder, strip_bom=lambda self, line: line)


class DispatchesEventWithoutData(FaultyClient):
    scenario, kind = "blocks-without-data", "cursor"

    class Dispatches(Decoder):
        def dispatch(self):
            named = self.type or self.new_id is not None
            return super().dispatch() or ([Event("message", "", self.last_id, True)] if named else [])


class DispatchesEventAfterComment(FaultyClient):
    scenario, kind = "comments", "count"

    class Dispatches(Decoder):
        def line(self, line):
            if line.startswith(b":"):
                self.data = self.data or [b""]
            return super().line(line)


class DecodesChunksSeparately(FaultyClient):
    scenario, kind, breaks = "one-byte-at-a-time", "count", "TW-FRM-084"
    decoder = changed(
        Decoder, feed=lambda self, chunk: Decoder.feed(self, chunk.decode("utf-8", "replace").encode())
    )


class ReadsSplitCrLfAsTwoLineEnds(FaultyClient):
    scenario, kind = "cr-lf-in-pieces", "count"

    class Takes(Decoder):
        def feed(self, chunk):
            self.after_cr = False
            return super().feed(chunk)


class WaitsForLfAfterCr(FaultyClient):
    scenario, kind = "event-complete-with-its-cr", "promptness"
    decoder = changed(Decoder, line_end=re.compile(rb"\r\n|\r(?!\Z)|\n"))


class HonorsCharsetParameter(FaultyClient):
    scenario, kind, breaks = "media-type-in-capitals", "count", "TW-FRM-084"

    def new_decoder(self, response):
        decoder = super().new_decoder(response)
        if charset := response.headers.get_param("charset"):
            decoder.text = lambda value: value.decode(charset)
        return decoder


class AcceptsNonNumericRetry(FaultyClient):
    scenario, kind = "retry-that-is-no-number", "wait"

    class Accepts(Decoder):
        def set_retry(self, value):
            with contextlib.suppress(ValueError):
                self.retry = max(0, int(value.decode()))


class KeepsIdOfUnfinishedEvent(FaultyClient):
    scenario, kind = "cut-after-an-id", "cursor"

    def new_decoder(self, response):
        self.last_decoder = super().new_decoder(response)
        return self.last_decoder

    def cursor_to_send(self):
        return self.cursor and (self.last_decoder.new_id or self.cursor)


class KeepsIdOfBlockWithoutData(KeepsIdOfUnfinishedEvent):
    scenario, kind, breaks = "blocks-without-data", "cursor", "TW-CLI-002"

    def cursor_to_send(self):
        return self.cursor and self.last_decoder.last_id


class BuffersWithoutLimit(FaultyClient):
    scenario, kind, is_costly = "endless-line", "hung", True
    decoder = changed(Decoder, bound=lambda self: None)


class LimitsLinesButNotEvents(FaultyClient):
    scenario, kind, breaks, is_costly = "endless-event", "hung", "TW-FRM-040", True
    decoder = changed(
        Decoder,
        bound=lambda self: demand(self.size - self.event_size <= MAX_UNFINISHED_BYTES, "a line is too long"),
    )


class RescansLineForEachChunk(FaultyClient):
    scenario, kind, is_costly = "long-line-in-small-pieces", "hung", True

    class Reads(Decoder):
        rest = b""

        def feed(self, chunk):
            self.rest += chunk
            whole = [end.end() for end in re.finditer(rb"\n|\r", self.rest)]
            if not whole:
                return []
            lines, self.rest = self.rest[: whole[-1]], self.rest[whole[-1] :]
            return super().feed(lines)


# ---- ids -----------------------------------------------------------------------------------------------------


class DeliversDuplicateEvents(FaultyClient):
    scenario, kind = "one-event-again", "text"

    def is_repeat(self, name):
        return False

    def base_of(self, name, on):
        return self.state

    def verify(self, done):
        pass


class AcceptsGap(FaultyClient):
    scenario, kind = "gap", "never"

    def base_of(self, name, on):
        return self.state


class AcceptsDiffOfAnotherEpoch(FaultyClient):
    scenario, kind = "diff-across-epochs", "never"

    def base_of(self, name, on):
        return super().base_of(f"{id_key(self.cursor)[0]}-{id_key(name)[1]}", on)


class ComparesIdsBySeqOnly(FaultyClient):
    scenario, kind = "epoch-before-seq", "count"

    def is_repeat(self, name):
        return self.cursor is not None and id_key(name)[1] <= id_key(self.cursor)[1]


class ComparesIdsAsStrings(FaultyClient):
    scenario, kind = "ids-are-numbers", "cursor"

    def is_repeat(self, name):
        return self.cursor is not None and name <= self.cursor


class IgnoresBaseOfMergedDiff(FaultyClient):
    scenario, kind = "merged-diff", "count"

    def base_of(self, name, on):
        return super().base_of(name, id_key(name)[1] - 1)


class IgnoresReasonRewound(FaultyClient):
    scenario, kind = "rewound-to-a-lower-id", "count"

    def snapshot(self, name, data, *, has_id):
        super().snapshot(name, data | {"reason": "compacted"}, has_id=has_id)


class AcceptsOlderSnapshot(FaultyClient):
    scenario, kind = "older-snapshot", "never"

    def snapshot(self, name, data, *, has_id):
        super().snapshot(name, data | {"reason": "rewound"}, has_id=has_id)


class AppliesDiffToEmptyState(FaultyClient):
    scenario, kind = "diff-before-any-snapshot", "never"

    def base_of(self, name, on):
        if self.state is None:
            empty = {"status": "running", "items": [{"status": "running", "value": ""}]}
            return self.state_type(empty, ["/items/0/value"])
        return super().base_of(name, on)


# ---- protocol errors -----------------------------------------------------------------------------------------


class AcceptsLoggedEventBeforeHello(FaultyClient):
    scenario, kind = "logged-event-before-hello", "never"

    def has_hello(self):
        return True


class AcceptsRewoundSnapshotWithoutId(FaultyClient):
    scenario, kind = "rewound-without-an-id", "never"

    def has_id(self, event):
        return True

    def snapshot(self, name, data, *, has_id):
        super().snapshot(name, data, has_id=True)


class AcceptsRewoundSnapshotWithoutIdAtFirst(AcceptsRewoundSnapshotWithoutId):
    scenario = "rewound-without-an-id-first"


class UsesLenientJsonParser(FaultyClient):
    scenario, kind = "nan", "never"

    json = type("Lax", (Json,), {"parse": staticmethod(json.loads)})


class DoesNotVerifyChecks(FaultyClient):
    scenario, kind = "failed-check", "never"
    state_type = type("Unverified", (State,), {"verify": lambda self, checks: None})


class DoesNotVerifyDigest(FaultyClient):
    scenario, kind = "wrong-digest", "count"

    def verify(self, done):
        pass


class DoesNotVerifyStable(FaultyClient):
    scenario, kind = "stable-is-replaced", "never"
    state_type = type("Unstable", (State,), {"verify_stable": lambda self, after: None})


class AcceptsLowerStable(FaultyClient):
    scenario, kind = "stable-is-lowered", "never"
    state_type = type("Shrinks", (State,), {"verify_not_lowered": lambda self, new, path, n: None})


class IgnoresUnknownLoggedEvent(FaultyClient):
    scenario, kind = "unknown-logged-event", "hung"

    def unknown(self, event):
        pass


class GivesUpOnUnknownEvent(FaultyClient):
    scenario, kind = "unknown-ephemeral-event", "end"

    def unknown(self, event):
        raise EndError("protocol_error", detail=event.type)


class GivesUpOnUnknownMember(FaultyClient):
    scenario, kind = "unknown-members", "end"

    def hello(self, data):
        if len(data) > 5:
            raise EndError("protocol_error", detail="a member too many")
        super().hello(data)


class KeepsCursorAcrossResync(FaultyClient):
    scenario, kind, breaks = "gap", "cursor", "TW-CLI-028"

    def resync(self, breach):
        cursor = self.cursor
        super().resync(breach)
        self.cursor = cursor


class ResyncsWithoutLimit(FaultyClient):
    scenario, kind = "fourth-resync", "count"

    def resync(self, breach):
        self.resyncs = 0
        super().resync(breach)


class NeverResetsResyncCount(FaultyClient):
    scenario, kind = "resyncs-are-forgotten", "end"

    def advance(self, state, name, *, forward=True):
        self.applied = -1
        super().advance(state, name, forward=forward)


class ForgetsDeliveredTextOnResync(FaultyClient):
    scenario, kind = "resync-remembers", "text"

    def resync(self, breach):
        super().resync(breach)
        self.delivered.clear()


class GivesUpOnFirstMalformedEvent(FaultyClient):
    scenario, kind, breaks = "data-that-is-no-json", "end", "TW-CLI-027"

    def resync(self, breach):
        raise EndError("protocol_error", detail=str(breach))


class CountsUtf16Units(FaultyClient):
    scenario, kind = "code-points", "count"
    state_type = type(
        "Utf16", (State,), {"length": staticmethod(lambda x: len(str(x).encode("utf-16-le")) // 2)}
    )


class BuildsTextFromTokens(FaultyClient):
    scenario, kind = "text-beside-the-text-of-tokens", "text"

    @staticmethod
    def text_of(value):
        return "".join(value["token_text"]) if isinstance(value, dict) else None


class DoesNotReportRetractedText(FaultyClient):
    scenario, kind = "rollback", "text"

    def difference(self, old, new):
        return 0, new.removeprefix(old)


class ReportsUnchangedTextAsRetracted(FaultyClient):
    scenario, kind = "rollback-to-the-same-text", "retracted"

    def difference(self, old, new):
        return (0, new[len(old) :]) if new.startswith(old) and len(new) - len(old) != 2 else (len(old), new)


class MutatesDeliveredValues(FaultyClient):
    scenario, kind = "values-stay-as-they-were", "kept"
    state_type = type("Aliased", (State,), {"copied": lambda self: self.value})

    def deliver(self):
        self.delivered[0] = None
        super().deliver()
