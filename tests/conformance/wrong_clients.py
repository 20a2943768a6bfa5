"""Clients with one fault each: the plain client with one method changed. Each is caught by a scenario, for its reason.

`scenario` is the one that has to catch it, and `kind` what its finding has to be about.
"""

import contextlib
import json
import re
import time

from conformance.plain_client import CutError, EndError, PlainClient, key_of
from conformance.plain_state import Decoder, Event, State


class WrongClient(PlainClient):
    scenario: str
    kind: str
    control = "ended-before-it-was-read"
    """A scenario that has nothing to do with the fault, and passes."""
    patience = 0.3
    """A factor to the time that the scenario gives it: some hang."""


# ---- framing ---------------------------------------------------------------------------------------------------


def decodes(**members):
    return type("WrongDecoder", (Decoder,), members)


class SplitsAtUnicodeLineEnds(WrongClient):
    scenario, kind = "line-ends-of-other-standards", "count"
    decoder = decodes(line_end=re.compile(rb"\r\n|\r|\n|\xe2\x80\xa8|\xe2\x80\xa9|\xc2\x85"))


class DispatchesAnUnfinishedEvent(WrongClient):
    scenario, kind = "cut-before-the-empty-line", "cursor"
    decoder = decodes(end=lambda self: self.line(b"".join(self.pieces)) + self.line(b""))


class LosesTheEventAfterAByteOrderMark(WrongClient):
    scenario, kind = "byte-order-mark", "count"
    decoder = decodes(without_mark=lambda self, line: line)


class DispatchesAnEventWithoutData(WrongClient):
    scenario, kind = "blocks-without-data", "cursor"

    def new_decoder(self, answer):
        decoder = super().new_decoder(answer)
        right = decoder.dispatch

        def dispatch():
            named = decoder.type or decoder.new_id is not None
            return right() or ([Event("message", "", decoder.last_id, True)] if named else [])

        decoder.dispatch = dispatch
        return decoder


class DecodesChunksApart(WrongClient):
    scenario, kind = "one-byte-at-a-time", "count"
    decoder = decodes(feed=lambda self, chunk: Decoder.feed(self, chunk.decode("utf-8", "replace").encode()))


class TakesCrLfInPiecesForTwoLineEnds(WrongClient):
    scenario, kind = "cr-lf-in-pieces", "count"

    def new_decoder(self, answer):
        decoder = super().new_decoder(answer)
        right = decoder.feed

        def feed(chunk):
            decoder.after_cr = False
            return right(chunk)

        decoder.feed = feed
        return decoder


class WaitsForTheLfAfterACr(WrongClient):
    scenario, kind = "event-complete-with-its-cr", "promptness"
    decoder = decodes(line_end=re.compile(rb"\r\n|\r(?!\Z)|\n"))


class HonoursAnotherCharset(WrongClient):
    scenario, kind = "media-type-in-capitals", "count"

    def new_decoder(self, answer):
        decoder = super().new_decoder(answer)
        if charset := answer.headers.get_param("charset"):
            decoder.text = lambda value: value.decode(charset)
        return decoder


class AcceptsARetryThatIsNoNumber(WrongClient):
    scenario, kind = "retry-that-is-no-number", "wait"

    def new_decoder(self, answer):
        decoder = super().new_decoder(answer)

        def take_retry(value):
            with contextlib.suppress(ValueError):
                decoder.retry = max(0, int(value.decode()))

        decoder.take_retry = take_retry
        return decoder


class KeepsTheIdOfAnUnfinishedEvent(WrongClient):
    scenario, kind = "cut-after-an-id", "cursor"

    def new_decoder(self, answer):
        self.last_decoder = super().new_decoder(answer)
        return self.last_decoder

    def cursor_to_send(self):
        return self.cursor and (self.last_decoder.new_id or self.cursor)


class KeepsTheIdOfABlockWithoutData(KeepsTheIdOfAnUnfinishedEvent):
    scenario, kind = "blocks-without-data", "cursor"

    def cursor_to_send(self):
        return self.cursor and self.last_decoder.last_id


class HasNoBound(WrongClient):
    scenario, kind = "endless-line", "hung"
    decoder = decodes(bound=lambda self: None)


class ReadsALineAnewWithEachPiece(WrongClient):
    scenario, kind = "long-line-in-small-pieces", "hung"

    def new_decoder(self, answer):
        decoder = super().new_decoder(answer)
        right, rest = decoder.feed, bytearray()

        def feed(chunk):
            rest.extend(chunk)
            whole = [end.end() for end in re.finditer(rb"\n|\r", bytes(rest))]
            if not whole:
                return []
            lines = bytes(rest[: whole[-1]])
            del rest[: whole[-1]]
            return right(lines)

        decoder.feed = feed
        return decoder


# ---- cuts and waits --------------------------------------------------------------------------------------------


class TakesTheEndOfTheBodyForSuccess(WrongClient):
    scenario, kind = "body-ends-before-done", "value"

    def at_eof(self):
        raise EndError("succeeded", value=self.last())


class TakesSilenceForSuccess(WrongClient):
    scenario, kind = "silence", "value"

    def fail(self, cut):
        if str(cut).startswith("TimeoutError"):
            raise EndError("succeeded", value=self.last())
        super().fail(cut)


class DoesNotNoticeSilence(WrongClient):
    scenario, kind = "silence", "hung"

    def silence(self):
        return 3600.0


class TakesTheAgeOfAConnectionForSilence(WrongClient):
    scenario, kind = "few-bytes-are-no-silence", "count"

    def receive(self, event):
        if event.type == "hello":
            self.born = time.monotonic()
        return super().receive(event)

    def silence(self):
        return min(super().silence(), self.born + 1.0 - time.monotonic())


class DoesNotNoticeADeafSubscription(WrongClient):
    scenario, kind = "two-pings-above-the-id", "hung"

    def ping(self, data):
        pass


class TakesEachPingAboveItsIdForACut(WrongClient):
    scenario, kind = "one-ping-above-the-id", "count"

    def ping(self, data):
        if self.cursor and key_of(data["head"]) > key_of(self.cursor):
            raise CutError("deaf")


class HandsOverPings(WrongClient):
    scenario, kind = "pings-at-the-head", "order"

    def ping(self, data):
        self.give(0, data, None)


class SendsNoCursor(WrongClient):
    scenario, kind = "closed-inside-an-event", "cursor"

    def cursor_to_send(self):
        return None


class SendsAStaleCursor(WrongClient):
    scenario, kind = "goaway-after-progress", "cursor"
    first = None

    def cursor_to_send(self):
        self.first = self.first or self.cursor
        return self.first


class DoesNotWait(WrongClient):
    scenario, kind = "backoff-doubles", "wait"

    def backoff(self, failures):
        return 0.0


class WaitsTheSameEachTime(WrongClient):
    scenario, kind = "backoff-doubles", "wait"

    def backoff(self, failures):
        return super().backoff(1)


class IgnoresTheBaseOfTheStream(WrongClient):
    scenario, kind = "retry-is-the-base", "wait"

    def backoff(self, failures):
        self.retry = 0.01
        return super().backoff(failures)


class TakesAnOpeningSnapshotForProgress(WrongClient):
    scenario, kind = "opening-snapshot-is-no-progress", "wait"

    def moved(self, state, name, *, forward=True):
        super().moved(state, name)


class TakesRepeatsForProgress(WrongClient):
    scenario, kind = "repeats-are-no-progress", "wait"

    def is_repeat(self, name):
        self.failures = 0
        return super().is_repeat(name)


class NeverCountsAnew(WrongClient):
    scenario, kind, patience = "progress-starts-the-count-anew", "wait", 1.0

    def moved(self, state, name, *, forward=True):
        failures = self.failures
        super().moved(state, name, forward=forward)
        self.failures = failures


class TakesGoawayForTheEnd(WrongClient):
    scenario, kind = "goaway", "end"

    def goaway(self, data):
        raise EndError("connection_error", detail=data["reason"])


class ComesBackAtOnceAfterGoaway(WrongClient):
    scenario, kind = "goaway", "wait"

    def goaway(self, data):
        raise CutError("goaway", counts=False)


class TakesTheWaitOfGoawayToTheLetter(WrongClient):
    scenario, kind = "goaway-names-no-wait", "wait"

    def goaway(self, data):
        raise CutError("goaway", least=data["retry_ms"] / 1000, counts=False)


class GivesUpAsIfItHadSucceeded(WrongClient):
    scenario, kind = "giving-up", "end"

    def fail(self, cut):
        try:
            super().fail(cut)
        except EndError as error:
            raise EndError("succeeded", value=self.last()) from error


# ---- ids -------------------------------------------------------------------------------------------------------


class HandsOverRepeats(WrongClient):
    scenario, kind = "one-event-again", "text"

    def is_repeat(self, name):
        return False

    def base_of(self, name, on):
        return self.state

    def verify(self, done):
        pass


class AcceptsAGap(WrongClient):
    scenario, kind = "gap", "never"

    def base_of(self, name, on):
        return self.state


class AcceptsADiffOfAnotherEpoch(WrongClient):
    scenario, kind = "diff-across-epochs", "never"

    def base_of(self, name, on):
        return super().base_of(f"{key_of(self.cursor)[0]}-{key_of(name)[1]}", on)


class ComparesSeqsWithoutEpochs(WrongClient):
    scenario, kind = "epoch-before-seq", "count"

    def is_repeat(self, name):
        return self.cursor is not None and key_of(name)[1] <= key_of(self.cursor)[1]


class ComparesIdsAsTexts(WrongClient):
    scenario, kind = "ids-are-numbers", "cursor"

    def is_repeat(self, name):
        return self.cursor is not None and name <= self.cursor


class IgnoresTheBaseThatADiffNames(WrongClient):
    scenario, kind = "merged-diff", "count"

    def base_of(self, name, on):
        return super().base_of(name, key_of(name)[1] - 1)


class IgnoresRewound(WrongClient):
    scenario, kind = "rewound-to-a-lower-id", "count"

    def snapshot(self, name, data):
        super().snapshot(name, data | {"reason": "compacted"})


class TakesASnapshotForARepeatOfNothing(WrongClient):
    scenario, kind = "older-snapshot", "never"

    def snapshot(self, name, data):
        super().snapshot(name, data | {"reason": "rewound"})


class AppliesADiffToNothing(WrongClient):
    scenario, kind = "diff-before-any-snapshot", "never"

    def base_of(self, name, on):
        if self.state is None:
            empty = {"status": "running", "items": [{"status": "running", "value": ""}]}
            return self.state_type(empty, ["/items/0/value"])
        return super().base_of(name, on)


# ---- breaches --------------------------------------------------------------------------------------------------


class TakesWhateverIsJson(WrongClient):
    scenario, kind = "nan", "never"

    def logged(self, event):
        from conformance import plain_client

        right, plain_client.parse = plain_client.parse, json.loads
        try:
            return super().logged(event)
        finally:
            plain_client.parse = right


class DoesNotVerify(WrongClient):
    scenario, kind = "failed-check", "never"
    state_type = type("Unverified", (State,), {"verify": lambda self, checks: None})


class DoesNotVerifyTheDigest(WrongClient):
    scenario, kind = "wrong-digest", "count"

    def verify(self, done):
        pass


class DoesNotHoldToStable(WrongClient):
    scenario, kind = "stable-is-replaced", "never"
    state_type = type("Unstable", (State,), {"keep_stable": lambda self, after: None})


class IgnoresAnUnknownLoggedEvent(WrongClient):
    scenario, kind = "unknown-logged-event", "hung"

    def unknown(self, event):
        pass


class DiesOfAnUnknownEvent(WrongClient):
    scenario, kind = "unknown-ephemeral-event", "end"

    def unknown(self, event):
        raise EndError("protocol_error", detail=event.type)


class KeepsItsCursorThroughAResync(WrongClient):
    scenario, kind = "gap", "cursor"

    def resync(self, breach):
        cursor = self.cursor
        super().resync(breach)
        self.cursor = cursor


class ResyncsWithoutABound(WrongClient):
    scenario, kind = "fourth-resync", "count"

    def resync(self, breach):
        self.resyncs = 0
        super().resync(breach)


class NeverForgetsAResync(WrongClient):
    scenario, kind = "resyncs-are-forgotten", "end"

    def moved(self, state, name, *, forward=True):
        self.applied = -1
        super().moved(state, name, forward=forward)


class ForgetsWhatItHandedOver(WrongClient):
    scenario, kind = "resync-remembers", "text"

    def resync(self, breach):
        super().resync(breach)
        self.given.clear()


class EndsAtTheFirstBreach(WrongClient):
    scenario, kind = "data-that-is-no-json", "end"

    def resync(self, breach):
        raise EndError("protocol_error", detail=str(breach))


class CountsUtf16(WrongClient):
    scenario, kind = "code-points", "count"
    state_type = type(
        "Utf16", (State,), {"length": staticmethod(lambda x: len(str(x).encode("utf-16-le")) // 2)}
    )


class DoesNotTellWhatIsVoid(WrongClient):
    scenario, kind = "rollback", "text"

    def difference(self, old, new):
        return 0, new.removeprefix(old)


class VoidsWhatATruncationTouches(WrongClient):
    scenario, kind = "rollback-to-the-same-text", "void"

    def difference(self, old, new):
        return (0, new[len(old) :]) if new.startswith(old) and len(new) - len(old) != 2 else (len(old), new)


class ChangesValuesThatWereGiven(WrongClient):
    scenario, kind = "values-stay-as-they-were", "kept"
    state_type = type("Aliased", (State,), {"copied": lambda self: self.value})

    def hand_over(self):
        self.given[0] = None
        super().hand_over()


# ---- answers ---------------------------------------------------------------------------------------------------


class Ignores204(WrongClient):
    scenario, kind = "204-and-the-job-runs", "value"

    def read_job(self):
        raise EndError("succeeded", value=self.last())


class Takes400ForTheEnd(WrongClient):
    scenario, kind = "400-on-a-cursor", "end"

    def judge_status(self, answer, wait):
        if answer.status == 400:
            self.refuse(answer)
        super().judge_status(answer, wait)


class Repeats404ForEver(WrongClient):
    scenario, kind = "404", "count"

    def judge_status(self, answer, wait):
        if answer.status == 404:
            raise CutError("404")
        super().judge_status(answer, wait)

    def backoff(self, failures):
        return 0.05


class GivesUpOnTheFirst503(WrongClient):
    scenario, kind = "retry-after", "end"

    def judge_status(self, answer, wait):
        self.refuse(answer)


class IgnoresRetryAfter(WrongClient):
    scenario, kind = "retry-after", "wait"

    def retry_after(self, answer):
        return 0.0


class RefreshesCredentialsForEver(WrongClient):
    scenario, kind = "401-twice", "count"

    def judge_status(self, answer, wait):
        if answer.status == 401:
            raise CutError("401")
        super().judge_status(answer, wait)


class CountsFaultsForEver(WrongClient):
    scenario, kind, patience = "eleven-faults", "count", 1.0

    def judge_status(self, answer, wait):
        self.faults = 0
        super().judge_status(answer, wait)


class TakesAnyMediaType(WrongClient):
    scenario, kind = "stream-of-another-media-type", "never"

    def ask(self, *args):
        answer = super().ask(*args)
        answer.is_stream = lambda: answer.status == 200
        return answer


class FollowsEveryRedirect(WrongClient):
    scenario, kind = "redirect-to-another-origin", "foreign"

    def judge_redirect(self, method, there, redirects):
        pass


class SendsCredentialsEverywhere(WrongClient):
    scenario, kind = "link-to-another-origin", "foreign"

    def home(self, url):
        return True


class SubmitsAgain(WrongClient):
    scenario, kind = "submit-and-a-cut", "count"

    def open(self):
        if self.command["do"] == "submit" and self.cursor:
            return self.submit()
        return super().open()


class RepeatsASubmitWithoutAKey(WrongClient):
    scenario, kind = "submit-lost-without-a-key", "count"

    def may_repeat(self):
        return True


class RepeatsASubmitWithAnotherKey(WrongClient):
    scenario, kind = "submit-409", "repeat"
    count = 0

    def once(self, method, url, headers, body):
        self.count += 1
        if "Idempotency-Key" in headers:
            headers = headers | {"Idempotency-Key": f"{headers['Idempotency-Key']}{self.count}"}
        return super().once(method, url, headers, body)


class TakesAnyJob(WrongClient):
    scenario, kind = "hello-of-another-job", "never"

    def hello(self, data):
        super().hello(data | {"job": self.job})


class IgnoresTheLinkOfHello(WrongClient):
    scenario, kind = "link-of-hello", "path"

    def hello(self, data):
        url = self.stream_url
        super().hello(data)
        self.stream_url = url


class AcceptsCompressedStreams(WrongClient):
    scenario, kind, control = "handed-over-at-once", "header", "discovery"

    def once(self, method, url, headers, body):
        return super().once(method, url, headers | {"Accept-Encoding": "gzip"}, body)


# ---- ends and users --------------------------------------------------------------------------------------------


class ReconnectsAfterDone(WrongClient):
    scenario, kind, control = "done-closes", "count", "404"

    def follow(self, opened):
        end = super().follow(opened)
        self.hang_up(self.open())
        return end


class LeavesItsSocketOpen(WrongClient):
    scenario, kind = "user-stops-reading", "open"
    left = ()

    def hang_up(self, answer):
        self.left = [*self.left, answer]
        type(self).kept = self.left


class WaitsForTheEndOfTheBodyAfterDone(WrongClient):
    scenario, kind = "done-closes", "hung"
    ended = None

    def receive(self, event):
        self.ended = self.ended or super().receive(event)

    def at_eof(self):
        raise EndError(**self.ended)


class LosesWhatComesWithDone(WrongClient):
    scenario, kind = "done-in-one-piece", "end"

    def new_decoder(self, answer):
        decoder = super().new_decoder(answer)
        right = decoder.feed

        def feed(chunk):
            events = right(chunk)
            ends = [event for event in events if event.type == "done"]
            return ends or events

        decoder.feed = feed
        return decoder

    def base_of(self, name, on):
        return self.state

    def verify(self, done):
        if self.state is None:
            raise EndError("connection_error", detail="nothing came")


class HangsWhenTheJobFails(WrongClient):
    scenario, kind = "failed", "hung"

    def finish(self, done):
        return None if done["status"] == "failed" else super().finish(done)


class DropsTheReasonOfAFailure(WrongClient):
    scenario, kind = "failed", "problem"

    def finish(self, done):
        return {name: value for name, value in super().finish(done).items() if name != "problem"}


class TakesACancelledJobForAFailedOne(WrongClient):
    scenario, kind = "cancelled", "end"

    def finish(self, done):
        return super().finish(done) | ({"end": "failed"} if done["status"] == "cancelled" else {})


class DoesNotMarkWhatIsIncomplete(WrongClient):
    scenario, kind = "410", "incomplete"

    def refuse(self, answer):
        try:
            super().refuse(answer)
        except EndError as error:
            error.report["incomplete"] = False
            raise


class DropsMembersOfAProblem(WrongClient):
    scenario, kind = "problem-handed-over-whole", "problem"

    def refuse(self, answer):
        try:
            super().refuse(answer)
        except EndError as error:
            error.report["problem"] = {"code": error.report["problem"]["code"]}
            raise


class MixesItemsUp(WrongClient):
    scenario, kind = "batch", "value"

    def give(self, index, value, before):
        super().give((index + 1) % 3 if self.batch else index, value, before)


class CancelsWhenItsUserStops(WrongClient):
    scenario, kind = "user-stops-reading", "count"

    def checkpoint(self):
        self.cancel()
        return super().checkpoint()


class NeverCancels(WrongClient):
    scenario, kind = "user-cancels", "promptness"

    def cancel(self):
        pass


class AcceptsACheckpointOfAnotherJob(WrongClient):
    scenario, kind = "checkpoint-of-another-job", "end"

    def restore(self, saved):
        super().restore(saved and saved | {"job": self.job})


class SharesItsCursorBetweenJobs(WrongClient):
    scenario, kind = "two-jobs-in-turn", "cursor"
    cursor = None

    def start(self, job):
        cursor = self.cursor
        super().start(job)
        self.cursor = cursor


def all_wrong(kind=WrongClient):
    """Every client with a fault."""
    for client in kind.__subclasses__():
        yield client
        yield from all_wrong(client)
