"""Faulty clients with errors in parsing fields, lines and JSON, or with wrong size limits."""

import contextlib
import re

from proof.clients.faulty_client import FaultyClient, changed
from proof.reimplementations.plain_state import MAX_UNFINISHED_BYTES, Decoder, Event, Json, MalformedError

# ---- fields ------------------------------------------------------------------------------------------------------


class CrashesOnInvalidUtf8(FaultyClient):
    scenario, kind, breaks = "bytes-that-are-not-utf-8", "died", "TW-FRM-084"
    decoder = changed(Decoder, text=lambda self, value: value.decode("utf-8"))


class ReplacesASurrogateAsAWhole(FaultyClient):
    """Replace the three bytes of a surrogate with one U+FFFD, as the decoder of Java does."""

    scenario, kind, breaks = "bytes-that-are-not-utf-8", "count", "TW-FRM-084"
    decoder = changed(
        Decoder,
        text=lambda self, value: re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]", b"\xff", value).decode(
            "utf-8", "replace"
        ),
    )


class SplitsEventsOnlyAtTwoLf(FaultyClient):
    """Split events only at two LF, as many tutorials do, so that a stream with other line ends yields no event."""

    scenario, kind, breaks = "lines-that-end-in-cr-lf", "count", "TW-FRM-084"

    class Splits(Decoder):
        rest = b""

        def feed(self, chunk):
            *blocks, self.rest = (self.rest + chunk).split(b"\n\n")
            return [event for block in blocks for event in super(type(self), self).feed(block + b"\n\n")]


class StripsFieldValues(FaultyClient):
    scenario, kind, breaks = "two-spaces-after-the-colon", "never", "TW-FRM-084"
    decoder = changed(Decoder, field=lambda self, name, value: Decoder.field(self, name, value.strip()))


class SplitsAtTheLastColon(FaultyClient):
    scenario, kind, breaks, control = "spaces-after-the-colon", "count", "TW-FRM-084", "discovery"

    class Splits(Decoder):
        def line(self, line):
            name, colon, value = line.rpartition(b":")
            if line and colon and name:
                self.field(name.decode("utf-8", "replace"), value.removeprefix(b" "))
                return []
            return super().line(line)


class IgnoresCaseOfFieldNames(FaultyClient):
    scenario, kind, breaks = "fields-that-are-unknown", "count", "TW-FRM-084"
    decoder = changed(Decoder, field=lambda self, name, value: Decoder.field(self, name.lower(), value))


class KeepsOnlyTheLastDataLine(FaultyClient):
    scenario, kind, breaks = "data-in-several-lines", "count", "TW-FRM-084"

    class Keeps(Decoder):
        def dispatch(self):
            self.data = self.data[-1:]
            return super().dispatch()


class KeepsTypeOfBlockWithoutData(FaultyClient):
    scenario, kind, breaks = "type-without-data-is-forgotten", "count", "TW-FRM-084"

    class Remembers(Decoder):
        def dispatch(self):
            kind = "" if self.data else self.type
            found = super().dispatch()
            self.type = kind
            return found


class KeepsEmptyEventType(FaultyClient):
    scenario, kind, breaks = "empty-type", "count", "TW-FRM-084"

    class Takes(Decoder):
        named = False

        def field(self, name, value):
            self.named = self.named or name == "event"
            super().field(name, value)

        def dispatch(self):
            empty = self.named and not self.type
            self.named = False
            return [Event("", e.data, e.id, own_id=False) if empty else e for e in super().dispatch()]


class TruncatesIdAtNul(FaultyClient):
    scenario, kind, breaks = "id-with-nul", "cursor", "TW-FRM-084"
    decoder = changed(
        Decoder, field=lambda self, name, value: Decoder.field(self, name, value.partition(b"\0")[0])
    )

    def receive(self, event):
        end = super().receive(event)
        if event.own_id and self.state is not None:
            self.cursor = event.id
        return end


class CrashesOnRetryAbove32Bits(FaultyClient):
    scenario, kind, breaks = "retry-beyond-all-bounds", "died", "TW-FRM-036"

    class Reads(Decoder):
        def set_retry(self, value):
            if value.isdigit():
                self.retry = int.from_bytes(int(value).to_bytes(4))


class ReadsRetryInSeconds(FaultyClient):
    scenario, kind, breaks = "retry-is-the-base", "hung", "TW-CLI-016"
    decoder = changed(
        Decoder,
        set_retry=lambda self, value: setattr(self, "retry", 1000 * int(value)) if value.isdigit() else None,
    )


class ReusesDecoderAcrossConnections(FaultyClient):
    scenario, kind, breaks = "decoder-of-each-connection", "count", "TW-FRM-038"
    kept = None

    def new_decoder(self, response):
        self.kept = self.kept or super().new_decoder(response)
        return self.kept


class LimitsSnapshotsToEventSize(FaultyClient):
    scenario, kind, breaks = "large-snapshot", "end", "TW-FRM-039"
    decoder = changed(Decoder, bound=lambda self: self.size <= 2**21 or _refuse())


class LimitsEventsTo64Kib(FaultyClient):
    """Limit events to 64 KiB, which is a common default of libraries that read lines."""

    scenario, kind, breaks = "large-event", "count", "TW-FRM-078"
    decoder = changed(Decoder, bound=lambda self: self.size <= 2**16 or _refuse())


def _refuse():
    raise MalformedError("an event is too long")


class CopiesBufferForEachChunk(FaultyClient):
    """Copy the whole buffer for each chunk with `buffer = buffer + chunk`, although only the chunk is searched."""

    scenario, kind, breaks, patience, is_costly = "long-line-in-small-pieces", "pace", "TW-FRM-041", 1.0, True

    class Copies(Decoder):
        rest = b""

        def feed(self, chunk):
            buffered, self.rest = self.rest + chunk, b""
            if b"\n" in chunk:
                return super().feed(buffered)
            self.rest = buffered
            return []


class StripsByteOrderMarkFromEachChunk(FaultyClient):
    """Strip a byte order mark from each chunk, as happens if each chunk is decoded by a new text decoder."""

    scenario, kind, breaks = "byte-order-mark-inside-a-text", "count", "TW-FRM-084"
    decoder = changed(
        Decoder, feed=lambda self, chunk: Decoder.feed(self, chunk.removeprefix(b"\xef\xbb\xbf"))
    )


# ---- JSON --------------------------------------------------------------------------------------------------------


class RepairsUnterminatedStrings(FaultyClient):
    """Close an unterminated string before parsing."""

    scenario, kind, breaks = "data-that-is-no-json", "never", "TW-OVR-001"

    class Mends(Json):
        @classmethod
        def parse(cls, text):
            return super().parse(text + '"' if text.count('"') % 2 else text)


class IgnoresMalformedEvents(FaultyClient):
    """Ignore malformed events and continue with the stream."""

    scenario, kind, breaks = "data-that-is-no-json", "hung", "TW-FRM-075"

    def receive(self, event):
        try:
            return super().receive(event)
        except MalformedError:
            return None


class AcceptsInfiniteNumbers(FaultyClient):
    scenario, kind, breaks = "number-beyond-the-finite", "never", "TW-SEC-021"
    json = changed(Json, number=staticmethod(float))


class RoundsLargeIntegers(FaultyClient):
    """Round large integers, as a parser with only 64-bit floats does."""

    scenario, kind, breaks = "integer-beyond-the-exact", "never", "TW-OVR-003"
    json = changed(Json, integer=staticmethod(lambda text: int(float(text))))


class AcceptsDuplicateMembers(FaultyClient):
    scenario, kind, breaks = "member-twice", "hung", "TW-OVR-004"
    json = changed(Json, members=staticmethod(dict))


class ReplacesLoneSurrogates(FaultyClient):
    scenario, kind, breaks = "lone-surrogate", "never", "TW-OVR-005"

    class Replaces(Json):
        @classmethod
        def parse(cls, text):
            return super().parse(re.sub(r"\\u[dD][89a-fA-F]..(?!\\u[dD])", "\ufffd", text))


class AcceptsLoneSurrogatesInNames(FaultyClient):
    scenario, kind, breaks = "lone-surrogate-in-a-name", "hung", "TW-OVR-005"

    class Looks(Json):
        @classmethod
        def walk(cls, value, depth):
            super().walk([*value.values()] if isinstance(value, dict) else value, depth)


class AcceptsDepthUpTo500(FaultyClient):
    scenario, kind, breaks = "nested-too-deep", "never", "TW-OVR-006"
    json = changed(Json, max_depth=500)


class CrashesOnDeepNesting(FaultyClient):
    scenario, kind, breaks = "nested-far-too-deep", "died", "TW-OVR-006"

    class Dies(Json):
        @classmethod
        def parse(cls, text):
            if text.count("[") > 500:
                raise RecursionError
            return super().parse(text)


class ReadsWholeFloatsAsIntegers(FaultyClient):
    """Treat 1.0 as the integer 1, as in a language with a single number type."""

    scenario, kind, breaks = "truncation-by-a-fraction", "never", "TW-OVR-010"
    json = changed(
        Json, number=staticmethod(lambda text: int(float(text)) if float(text).is_integer() else float(text))
    )


class RejectsNullForAbsentMember(FaultyClient):
    scenario, kind, breaks = "null-for-a-member-without-a-value", "count", "TW-OVR-028"

    def verify(self, done):
        if "error" in done and not isinstance(done["error"], dict):
            raise MalformedError("the error is not an object")
        super().verify(done)


class DropsUnknownValueMembers(FaultyClient):
    """Drop members of `value` that the client's own types do not define."""

    scenario, kind, breaks = "rows", "order", "TW-CLI-052"

    def deliver_value(self, index, value, before):
        kept = {name: value[name] for name in value if name == "text"} if isinstance(value, dict) else value
        super().deliver_value(index, kept, before)


class LimitsBytesPerConnection(FaultyClient):
    scenario, kind, breaks, is_costly = "large-snapshot", "count", "TW-FRM-039", True

    class Bounds(Decoder):
        total = 0

        def feed(self, chunk):
            self.total += len(chunk)
            return super().feed(chunk) if self.total <= MAX_UNFINISHED_BYTES else _refuse()


class LimitsDepthTo63(FaultyClient):
    scenario, kind, breaks = "nested-as-deep-as-allowed", "count", "TW-OVR-006"
    json = changed(Json, max_depth=63)


class IgnoresProgressAndQueueEvents(FaultyClient):
    scenario, kind, breaks = "progress-that-is-no-json", "never", "TW-FRM-075"

    def receive(self, event):
        return None if event.type in {"queue", "progress"} else super().receive(event)


class IgnoresMalformedPing(FaultyClient):
    scenario, kind, breaks = "head-that-is-a-number", "never", "TW-FRM-075"

    def receive(self, event):
        with contextlib.suppress(MalformedError) if event.type == "ping" else contextlib.nullcontext():
            return super().receive(event)
