"""Faulty clients: how they read fields and lines, what they take for JSON, and how much of it they can hold."""

import contextlib
import re

from proof.clients.faulty_client import FaultyClient
from proof.clients.stream_faults import decodes
from proof.reimplementations.plain_state import BOUND, Decoder, Event, Json, MalformedError


def reads(**members):
    return type("FaultyJson", (Json,), members)


# ---- fields ------------------------------------------------------------------------------------------------------


class DiesOfBytesThatAreNotUtf8(FaultyClient):
    scenario, kind, breaks = "bytes-that-are-not-utf-8", "died", "TW-FRM-021"
    decoder = decodes(text=lambda self, value: value.decode("utf-8"))


class TakesTwoLfForTheEndOfAnEvent(FaultyClient):
    """A split at two LF, as many a tutorial has it: other line ends never end an event."""

    scenario, kind, breaks = "lines-that-end-in-cr-lf", "count", "TW-FRM-023"

    class Splits(Decoder):
        rest = b""

        def feed(self, chunk):
            *blocks, self.rest = (self.rest + chunk).split(b"\n\n")
            return [event for block in blocks for event in super(type(self), self).feed(block + b"\n\n")]


class StripsTheValue(FaultyClient):
    scenario, kind, breaks = "two-spaces-after-the-colon", "never", "TW-FRM-027"
    decoder = decodes(field=lambda self, name, value: Decoder.field(self, name, value.strip()))


class SplitsAtTheLastColon(FaultyClient):
    scenario, kind, breaks, control = "spaces-after-the-colon", "count", "TW-FRM-027", "discovery"

    class Splits(Decoder):
        def line(self, line):
            name, colon, value = line.rpartition(b":")
            if line and colon and name:
                self.field(name.decode("utf-8", "replace"), value.removeprefix(b" "))
                return []
            return super().line(line)


class ReadsNamesInAnyCase(FaultyClient):
    scenario, kind, breaks = "fields-that-are-unknown", "count", "TW-FRM-029"
    decoder = decodes(field=lambda self, name, value: Decoder.field(self, name.lower(), value))


class KeepsTheLastDataOnly(FaultyClient):
    scenario, kind, breaks = "data-in-several-lines", "count", "TW-FRM-030"

    class Keeps(Decoder):
        def dispatch(self):
            self.data = self.data[-1:]
            return super().dispatch()


class RemembersTheTypeOfABlockWithoutData(FaultyClient):
    scenario, kind, breaks = "type-without-data-is-forgotten", "count", "TW-FRM-031"

    class Remembers(Decoder):
        def dispatch(self):
            kind = "" if self.data else self.type
            found = super().dispatch()
            self.type = kind
            return found


class TakesAnEmptyTypeAsItIs(FaultyClient):
    scenario, kind, breaks = "empty-type", "count", "TW-FRM-032"

    class Takes(Decoder):
        named = False

        def field(self, name, value):
            self.named = self.named or name == "event"
            super().field(name, value)

        def dispatch(self):
            empty = self.named and not self.type
            self.named = False
            return [Event("", e.data, e.id, own_id=False) if empty else e for e in super().dispatch()]


class TakesAnIdUpToItsNul(FaultyClient):
    scenario, kind, breaks = "id-with-nul", "cursor", "TW-FRM-033"
    decoder = decodes(field=lambda self, name, value: Decoder.field(self, name, value.partition(b"\0")[0]))

    def receive(self, event):
        end = super().receive(event)
        if event.own_id and self.state is not None:
            self.cursor = event.id
        return end


class ReadsRetryInto32Bits(FaultyClient):
    scenario, kind, breaks = "retry-beyond-all-bounds", "died", "TW-FRM-036"

    class Reads(Decoder):
        def take_retry(self, value):
            if value.isdigit():
                self.retry = int.from_bytes(int(value).to_bytes(4))


class ReadsRetryInSeconds(FaultyClient):
    scenario, kind, breaks = "retry-is-the-base", "hung", "TW-CLI-016"
    decoder = decodes(
        take_retry=lambda self, value: setattr(self, "retry", 1000 * int(value)) if value.isdigit() else None
    )


class KeepsItsDecoder(FaultyClient):
    scenario, kind, breaks = "decoder-of-each-connection", "count", "TW-FRM-038"
    kept = None

    def new_decoder(self, answer):
        self.kept = self.kept or super().new_decoder(answer)
        return self.kept


class HoldsSnapshotsToTheBoundOfEvents(FaultyClient):
    scenario, kind, breaks = "large-snapshot", "end", "TW-FRM-039"
    decoder = decodes(bound=lambda self: self.size <= 2**21 or _refuse())


class HoldsEventsTo64Kibibytes(FaultyClient):
    """The size of a line that a reader of lines takes by default."""

    scenario, kind, breaks = "large-event", "count", "TW-FRM-078"
    decoder = decodes(bound=lambda self: self.size <= 2**16 or _refuse())


def _refuse():
    raise MalformedError("an event that is too long")


class CopiesABufferWithEachPiece(FaultyClient):
    """`buffer = buffer + chunk`: what it looks for it looks for in the new piece alone, and it copies all the same."""

    scenario, kind, breaks, patience, is_costly = "long-line-in-small-pieces", "pace", "TW-FRM-041", 1.0, True

    class Copies(Decoder):
        rest = b""

        def feed(self, chunk):
            held, self.rest = self.rest + chunk, b""
            if b"\n" in chunk:
                return super().feed(held)
            self.rest = held
            return []


class StripsAMarkFromEachChunk(FaultyClient):
    """As a decoder of texts does that is made anew for each of them."""

    scenario, kind, breaks = "byte-order-mark-inside-a-text", "count", "TW-FRM-022"
    decoder = decodes(feed=lambda self, chunk: Decoder.feed(self, chunk.removeprefix(b"\xef\xbb\xbf")))


# ---- JSON --------------------------------------------------------------------------------------------------------


class MendsJson(FaultyClient):
    """A text that is cut off is taken as far as it goes."""

    scenario, kind, breaks = "data-that-is-no-json", "never", "TW-OVR-001"

    class Mends(Json):
        @classmethod
        def parse(cls, text):
            return super().parse(text + '"' if text.count('"') % 2 else text)


class PassesOverABreach(FaultyClient):
    """What cannot be read is dropped, and the stream goes on."""

    scenario, kind, breaks = "data-that-is-no-json", "hung", "TW-FRM-075"

    def receive(self, event):
        try:
            return super().receive(event)
        except MalformedError:
            return None


class HoldsNumbersToNoBound(FaultyClient):
    scenario, kind, breaks = "number-beyond-the-finite", "never", "TW-SEC-021"
    json = reads(number=staticmethod(float))


class RoundsIntegers(FaultyClient):
    """As a reader does that knows numbers of 64 bits only."""

    scenario, kind, breaks = "integer-beyond-the-exact", "never", "TW-OVR-003"
    json = reads(integer=staticmethod(lambda text: int(float(text))))


class TakesTheLastOfTwoMembers(FaultyClient):
    scenario, kind, breaks = "member-twice", "hung", "TW-OVR-004"
    json = reads(members=staticmethod(dict))


class ReplacesLoneSurrogates(FaultyClient):
    scenario, kind, breaks = "lone-surrogate", "never", "TW-OVR-005"

    class Replaces(Json):
        @classmethod
        def parse(cls, text):
            return super().parse(re.sub(r"\\u[dD][89a-fA-F]..(?!\\u[dD])", "\ufffd", text))


class LooksAtTextsAndNotAtNames(FaultyClient):
    scenario, kind, breaks = "lone-surrogate-in-a-name", "hung", "TW-OVR-005"

    class Looks(Json):
        @classmethod
        def walk(cls, value, depth):
            super().walk([*value.values()] if isinstance(value, dict) else value, depth)


class NestsAsDeepAsItsLibrary(FaultyClient):
    scenario, kind, breaks = "nested-too-deep", "never", "TW-OVR-006"
    json = reads(most=500)


class DiesOfDeepNesting(FaultyClient):
    scenario, kind, breaks = "nested-far-too-deep", "died", "TW-OVR-006"

    class Dies(Json):
        @classmethod
        def parse(cls, text):
            if text.count("[") > 500:
                raise RecursionError
            return super().parse(text)


class KnowsNoIntegers(FaultyClient):
    """In a language with one kind of number 1.0 is 1."""

    scenario, kind, breaks = "truncation-by-a-fraction", "never", "TW-OVR-010"
    json = reads(
        number=staticmethod(lambda text: int(float(text)) if float(text).is_integer() else float(text))
    )


class RefusesNullForAMemberThatIsLeftOut(FaultyClient):
    scenario, kind, breaks = "null-for-a-member-without-a-value", "count", "TW-OVR-028"

    def verify(self, done):
        if "error" in done and not isinstance(done["error"], dict):
            raise MalformedError("an error that is none")
        super().verify(done)


class ReadsOnlyWhatItKnows(FaultyClient):
    """Members of `value` that have no name in the client's own types are dropped."""

    scenario, kind, breaks = "rows", "order", "TW-CLI-052"

    def give(self, index, value, before):
        kept = {name: value[name] for name in value if name == "text"} if isinstance(value, dict) else value
        super().give(index, kept, before)


class BoundsAConnection(FaultyClient):
    scenario, kind, breaks, is_costly = "large-snapshot", "count", "TW-FRM-039", True

    class Bounds(Decoder):
        total = 0

        def feed(self, chunk):
            self.total += len(chunk)
            return super().feed(chunk) if self.total <= BOUND else _refuse()


class NestsLessDeep(FaultyClient):
    scenario, kind, breaks = "nested-as-deep-as-allowed", "count", "TW-OVR-006"
    json = reads(most=63)


class DoesNotReadProgress(FaultyClient):
    scenario, kind, breaks = "progress-that-is-no-json", "never", "TW-FRM-075"

    def receive(self, event):
        return None if event.type in {"queue", "progress"} else super().receive(event)


class PassesOverAPingThatItCannotRead(FaultyClient):
    scenario, kind, breaks = "head-that-is-a-number", "never", "TW-FRM-075"

    def receive(self, event):
        with contextlib.suppress(MalformedError) if event.type == "ping" else contextlib.nullcontext():
            return super().receive(event)
