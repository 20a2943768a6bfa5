"""Faulty clients with errors in the lines, fields and event types of an event stream."""

import re

from proof.clients.faulty_client import FaultyClient, changed
from proof.reimplementations.plain_state import Decoder


class StripsByteOrderMarkFromEachLine(FaultyClient):
    scenario, kind, breaks = "byte-order-marks-elsewhere", "count", "TW-FRM-084"
    decoder = changed(Decoder, line=lambda self, line: Decoder.line(self, line.removeprefix(b"\xef\xbb\xbf")))


class StripsRepeatedByteOrderMarks(FaultyClient):
    scenario, kind, breaks = "byte-order-marks-elsewhere", "count", "TW-FRM-084"

    class Strips(Decoder):
        def strip_bom(self, line):
            bare = super().strip_bom(line)
            return bare if bare == line else self.strip_bom(bare)


class IgnoresLinesWithoutColon(FaultyClient):
    scenario, kind, breaks = "empty-type", "count", "TW-FRM-084"
    decoder = changed(
        Decoder, line=lambda self, line: Decoder.line(self, line if b":" in line else line and b":")
    )


class KeepsFirstEventType(FaultyClient):
    scenario, kind, breaks = "empty-type", "count", "TW-FRM-084"
    decoder = changed(
        Decoder,
        field=lambda self, name, value: (
            None if name == "event" and self.type else Decoder.field(self, name, value)
        ),
    )


class AcceptsRetryWithLeadingSpaces(FaultyClient):
    scenario, kind, breaks = "retry-that-is-no-number", "wait", "TW-FRM-084"
    decoder = changed(Decoder, set_retry=lambda self, value: Decoder.set_retry(self, value.lstrip()))


class JoinsDataLinesWithoutSeparator(FaultyClient):
    scenario, kind, breaks = "text-over-two-lines", "never", "TW-FRM-084"

    class Joins(Decoder):
        between = b""

        def dispatch(self):
            self.data = [self.between.join(self.data)] if self.data else []
            return super().dispatch()


class JoinsDataLinesWithSpace(JoinsDataLinesWithoutSeparator):
    class Joins(JoinsDataLinesWithoutSeparator.Joins):
        between = b" "


class IgnoresCaseOfEventTypes(FaultyClient):
    scenario, kind, breaks = "types-in-other-letters", "count", "TW-FRM-045"

    def receive(self, event):
        event.type = event.type.lower()
        return super().receive(event)


class TrimsEventTypes(FaultyClient):
    scenario, kind, breaks = "types-in-other-letters", "count", "TW-FRM-045"

    def receive(self, event):
        event.type = event.type.strip()
        return super().receive(event)


class SplitsEventsOnlyAtEqualLineEnds(FaultyClient):
    """Split events only at two equal line ends. Two different line ends, such as CR LF and LF, do not end an event."""

    scenario, kind, breaks = "line-ends-that-change", "count", "TW-FRM-084"

    class Splits(Decoder):
        rest = b""

        def feed(self, chunk):
            found = []
            self.rest += chunk
            while pair := re.search(rb"\r\n\r\n|\n\n|\r\r", self.rest):
                block, self.rest = self.rest[: pair.start()], self.rest[pair.end() :]
                for line in filter(None, re.split(rb"\r\n|\r|\n", block)):
                    self.line(line)
                found += self.line(b"")
            return found


class DetectsLineEndOnlyOnce(FaultyClient):
    scenario, kind, breaks = "line-ends-that-change", "count", "TW-FRM-084"

    class Finds(Decoder):
        def feed(self, chunk):
            if self.at_start and (first := re.search(rb"\r\n|\r|\n", chunk)):
                self.line_end = re.compile(re.escape(first[0]))
            return super().feed(chunk)


class ReadsBlankLineAsEmptyLine(FaultyClient):
    scenario, kind, breaks = "fields-that-are-unknown", "count", "TW-FRM-084"
    decoder = changed(Decoder, line=lambda self, line: Decoder.line(self, line if line.strip() else b""))


class TrimsFieldNames(FaultyClient):
    scenario, kind, breaks = "fields-that-are-unknown", "count", "TW-FRM-084"
    decoder = changed(Decoder, field=lambda self, name, value: Decoder.field(self, name.rstrip(), value))


class AppliesRetryOnlyAtDispatch(FaultyClient):
    scenario, kind, breaks = "the-last-retry-holds", "wait", "TW-FRM-084"

    class Takes(Decoder):
        named = None

        def set_retry(self, value):
            before = self.retry
            super().set_retry(value)
            self.named, self.retry = self.retry, before

        def dispatch(self):
            self.retry = self.named
            return super().dispatch()
