"""Faulty readers of event streams: the plain reader with one rule changed."""

import contextlib
import re

from proof.reimplementations.plain_event_stream_reader import PlainEventStreamReader


class FaultyReader(PlainEventStreamReader):
    """Base of all faulty readers."""

    breaks = ""
    """Requirement that the reader violates."""
    scenario = ""
    """Scenario that must report the requirement."""
    control = "only-one-space-is-dropped"
    """Scenario that must pass."""


class AcceptsAnything(FaultyReader):
    breaks, scenario, control = "TW-SSE-015", "plain-stream", ""
    accept = "*/*"


class ReadsHtml(FaultyReader):
    breaks, scenario = "TW-SSE-016", "html-instead-of-a-stream"

    def accepts(self, status, media_type):
        return status == 200


class ComparesMediaTypeByCase(FaultyReader):
    breaks, scenario = "TW-SSE-016", "media-type-with-parameters"

    def accepts(self, status, media_type):
        return status == 200 and media_type.startswith("text/event-stream")


class DoesNotFollowRedirects(FaultyReader):
    breaks, scenario = "TW-SSE-017", "temporary-redirect"
    redirects = frozenset()


class HonorsCharset(FaultyReader):
    breaks, scenario = "TW-SSE-018", "another-charset"

    def begin(self, media_type):
        self.encoding = media_type.partition("charset=")[2] or "utf-8"
        super().begin(media_type)


class RejectsInvalidUtf8(FaultyReader):
    breaks, scenario = "TW-SSE-019", "invalid-byte-ff"
    encoding_errors = "strict"


class KeepsByteOrderMark(FaultyReader):
    breaks, scenario = "TW-SSE-020", "bom-at-the-start"

    def without_mark(self, text):
        return text


class DropsEveryByteOrderMark(FaultyReader):
    breaks, scenario = "TW-SSE-020", "bom-in-data-is-a-character"

    def feed(self, chunk):
        super().feed(chunk.replace(b"\xef\xbb\xbf", b""))


class EndsLinesAtSeparators(FaultyReader):
    breaks, scenario = "TW-SSE-021", "line-separator-is-data"
    line_end = re.compile("\r\n|\r|\n|\u2028|\u2029|\x85")


class DoesNotEndLinesAtCr(FaultyReader):
    breaks, scenario = "TW-SSE-021", "cr-ends-a-line"
    line_end = re.compile("\r\n|\n")


class ForgetsCrAtAChunk(FaultyReader):
    breaks, scenario, control = "TW-SSE-022", "crlf-ends-a-line", "lf-ends-a-line"

    def feed(self, chunk):
        self.after_cr = False
        super().feed(chunk)


class HoldsEventsBack(FaultyReader):
    breaks, scenario = "TW-SSE-023", "event-is-whole-at-its-last-cr"

    def feed(self, chunk):
        held = getattr(self, "held", b"") + chunk
        self.held = held[len(held) - held.endswith(b"\r") :]
        super().feed(held[: len(held) - len(self.held)])

    def finish(self):
        super().feed(self.held)


class KeepsSpaceAfterColon(FaultyReader):
    breaks, scenario, control = "TW-SSE-024", "one-space-is-dropped", "value-without-a-space"

    def value(self, text):
        return text


class StripsValues(FaultyReader):
    breaks, scenario, control = "TW-SSE-024", "only-one-space-is-dropped", "value-without-a-space"

    def value(self, text):
        return text.strip(" ")


class ReadsFieldsInComments(FaultyReader):
    breaks, scenario = "TW-SSE-025", "comments-are-ignored-anywhere"

    def line(self, line):
        super().line(line.removeprefix(":"))


class IgnoresCaseOfNames(FaultyReader):
    breaks, scenario = "TW-SSE-025", "names-are-case-sensitive"

    def field(self, name, value):
        super().field(name.lower(), value)


class KeepsOnlyLastDataLine(FaultyReader):
    breaks, scenario = "TW-SSE-026", "data-lines-need-not-be-adjacent"

    def field(self, name, value):
        if name == "data":
            self.fields.pop("data", None)
        super().field(name, value)


class DispatchesBlocksWithoutData(FaultyReader):
    breaks, scenario = "TW-SSE-027", "block-without-data-clears-the-type"

    def has_event(self, fields):
        return bool(fields)


class KeepsTypeForNextEvent(FaultyReader):
    breaks, scenario = "TW-SSE-028", "type-is-for-one-event"

    def dispatch(self):
        kind = self.fields.get("event")
        super().dispatch()
        if kind:
            self.fields["event"] = kind


class ForgetsIdAfterAnEvent(FaultyReader):
    breaks, scenario = "TW-SSE-029", "id-stays-over-later-events"

    def dispatch(self):
        super().dispatch()
        self.id = ""


class CommitsIdAtItsLine(FaultyReader):
    breaks, scenario = "TW-SSE-029", "id-of-an-unfinished-event-is-not-committed"

    def set_id(self, value):
        super().set_id(value)
        self.last_id = self.id


class AcceptsIdWithNul(FaultyReader):
    breaks, scenario = "TW-SSE-030", "id-with-nul-is-ignored"

    def set_id(self, value):
        self.id = value


class ReadsRetryLikeInt(FaultyReader):
    breaks, scenario = "TW-SSE-031", "retry-with-underscore-is-ignored"

    def set_retry(self, value):
        with contextlib.suppress(ValueError):
            self.retry = int(value)


class DispatchesAtTheEnd(FaultyReader):
    breaks, scenario = "TW-SSE-032", "unfinished-event-is-dropped"

    def finish(self):
        self.dispatch()


class DoesNotReconnectAfterTheEnd(FaultyReader):
    breaks, scenario = "TW-SSE-033", "end-of-a-response"

    def reconnects(self, status, number):
        return False


class DoesNotReconnectAfterALoss(FaultyReader):
    breaks, scenario = "TW-SSE-033", "lost-connection"

    def lost(self):
        return 0


class DoesNotWait(FaultyReader):
    breaks, scenario = "TW-SSE-034", "wait-before-the-next-request"

    def wait(self):
        pass


class SendsNoLastEventId(FaultyReader):
    breaks, scenario = "TW-SSE-035", "end-of-a-response"

    def headers(self):
        return {"Accept": self.accept}


class SendsEmptyLastEventId(FaultyReader):
    breaks, scenario = "TW-SSE-036", "no-id"

    def headers(self):
        return super().headers() | {"Last-Event-ID": self.last_id.encode()}


class KeepsUnfinishedEvent(FaultyReader):
    breaks, scenario = "TW-SSE-037", "unfinished-event-of-a-lost-connection"

    def begin(self, media_type):
        fields = self.fields
        super().begin(media_type)
        self.fields = fields


class ReconnectsAfterNoContent(FaultyReader):
    breaks, scenario = "TW-SSE-038", "no-content"

    def refused(self, status):
        return 200 if status == 204 else 0

    def reconnects(self, status, number):
        return status == 200 and number < 3


class ReconnectsAfterAnError(FaultyReader):
    breaks, scenario = "TW-SSE-038", "error-after-a-stream"

    def refused(self, status):
        return 200 if status == 404 else 0

    def reconnects(self, status, number):
        return status == 200 and number < 3


FAULTY_READERS = {each.__name__: each for each in FaultyReader.__subclasses__()}
