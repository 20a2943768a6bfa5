"""Faulty clients with errors in the detection of lost connections, or in their retry delays."""

import random
import time

from proof.clients.faulty_client import FaultyClient
from proof.reimplementations.plain_client import id_key
from proof.reimplementations.plain_requests import CutError, EndError

# ---- cuts and waits ------------------------------------------------------------------------------------------


class ReportsSuccessAtEndOfBody(FaultyClient):
    scenario, kind, breaks = "body-ends-before-done", "value", "TW-CLI-013"

    def at_eof(self):
        raise EndError("succeeded", value=self.last())


class GivesUpOnFirstDisconnect(FaultyClient):
    scenario, kind, breaks = "body-ends-before-done", "end", "TW-CLI-009"

    def fail(self, cut):
        raise EndError("connection_error", detail=str(cut))


class ReportsSuccessAfterTimeout(FaultyClient):
    scenario, kind, breaks = "silence", "value", "TW-CLI-013"

    def fail(self, cut):
        if str(cut).startswith("TimeoutError"):
            raise EndError("succeeded", value=self.last())
        super().fail(cut)


class NeverTimesOut(FaultyClient):
    scenario, kind = "silence", "hung"

    def silence(self):
        return 3600.0


class TimesOutByConnectionAge(FaultyClient):
    scenario, kind, breaks = "few-bytes-are-no-silence", "count", "TW-CLI-014"

    def receive(self, event):
        if event.type == "hello":
            self.born = time.monotonic()
        return super().receive(event)

    def silence(self):
        return min(super().silence(), self.born + 1.0 - time.monotonic())


class IgnoresHeadOfPings(FaultyClient):
    scenario, kind = "two-pings-above-the-id", "hung"

    def ping(self, data):
        pass


class ReconnectsOnFirstPingAheadOfCursor(FaultyClient):
    scenario, kind = "one-ping-above-the-id", "count"

    def ping(self, data):
        if self.cursor and id_key(data["head"]) > id_key(self.cursor):
            raise CutError("deaf")


class DeliversPingsToUser(FaultyClient):
    scenario, kind, breaks = "pings-at-the-head", "order", "TW-FRM-045"

    def ping(self, data):
        self.deliver_value(0, data, None)


class CrashesOnPing(FaultyClient):
    scenario, kind, breaks = "pings-at-the-head", "died", "TW-CLI-012"

    def ping(self, data):
        raise NotImplementedError("ping")


class SendsNoCursor(FaultyClient):
    scenario, kind, breaks = "closed-inside-an-event", "cursor", "TW-CLI-009"

    def cursor_to_send(self):
        return None


class SendsStaleCursor(FaultyClient):
    scenario, kind, breaks = "goaway-after-progress", "cursor", "TW-CLI-019"
    first = None

    def cursor_to_send(self):
        self.first = self.first or self.cursor
        return self.first


class ReconnectsWithoutWaiting(FaultyClient):
    scenario, kind = "backoff-doubles", "wait"

    def backoff(self, failures):
        return 0.0


class UsesConstantBackoff(FaultyClient):
    scenario, kind = "backoff-doubles", "wait"

    def backoff(self, failures):
        return super().backoff(1)


class IgnoresRetryField(FaultyClient):
    scenario, kind = "retry-is-the-base", "wait"

    def backoff(self, failures):
        self.retry = 0.01
        return super().backoff(failures)


class CountsOpeningSnapshotAsProgress(FaultyClient):
    scenario, kind = "opening-snapshot-is-no-progress", "wait"

    def advance(self, state, name, *, forward=True):
        super().advance(state, name)


class CountsDuplicatesAsProgress(FaultyClient):
    scenario, kind = "repeats-are-no-progress", "wait"

    def is_repeat(self, name):
        self.failures = 0
        return super().is_repeat(name)


class NeverResetsBackoff(FaultyClient):
    scenario, kind, patience = "progress-starts-the-count-anew", "wait", 1.0

    def advance(self, state, name, *, forward=True):
        failures = self.failures
        super().advance(state, name, forward=forward)
        self.failures = failures


class EndsOnGoaway(FaultyClient):
    scenario, kind = "goaway", "end"

    def goaway(self, data):
        raise EndError("connection_error", detail=data["reason"])


class CountsGoawayAsFailure(FaultyClient):
    scenario, kind = "goaway-after-progress", "end"

    def goaway(self, data):
        raise CutError("goaway", min_wait=max(0.1, data["retry_ms"] / 1000))

    def advance(self, state, name, *, forward=True):
        failures = self.failures
        super().advance(state, name, forward=forward)
        self.failures = failures


class ReconnectsImmediatelyAfterGoaway(FaultyClient):
    scenario, kind = "goaway", "wait"

    def goaway(self, data):
        raise CutError("goaway", counts=False)


class DoesNotWaitLongerAfterFailedGoaways(FaultyClient):
    scenario, kind, breaks = "goaway-without-progress", "wait", "TW-CLI-062"

    def goaway(self, data):
        raise CutError("goaway", min_wait=max(0.1, data["retry_ms"] / 1000), counts=False)


class DoesNotWaitWhenGoawayNamesNoWait(FaultyClient):
    scenario, kind = "goaway-names-no-wait", "wait"

    def goaway(self, data):
        raise CutError("goaway", min_wait=data["retry_ms"] / 1000, counts=False)


class ReportsSuccessWhenGivingUp(FaultyClient):
    scenario, kind = "giving-up", "end"

    def fail(self, cut):
        try:
            super().fail(cut)
        except EndError as error:
            raise EndError("succeeded", value=self.last()) from error


class MeasuresBackoffFromConnectionStart(FaultyClient):
    scenario, kind, breaks = "wait-begins-at-the-cut", "wait", "TW-CLI-015"
    began = 0.0

    def open(self):
        self.began = time.monotonic()
        return super().open()

    def backoff(self, failures):
        return super().backoff(failures) - (time.monotonic() - self.began)


class CountsHelloAsProgress(FaultyClient):
    """Reset the failure count at each successful connection, as an EventSource does."""

    scenario, kind, breaks = "what-is-not-logged-is-no-progress", "wait", "TW-CLI-017"

    def hello(self, data):
        super().hello(data)
        self.failures = 0


class CountsPingsAndProgressEventsAsProgress(FaultyClient):
    scenario, kind, breaks = "what-is-not-logged-is-no-progress", "wait", "TW-CLI-017"

    def receive(self, event):
        if event.type in {"progress", "ping"}:
            self.failures = 0
        return super().receive(event)


class CountsCommentsAsProgress(FaultyClient):
    scenario, kind, breaks = "what-is-not-logged-is-no-progress", "wait", "TW-CLI-017"

    def new_decoder(self, response):
        decoder = super().new_decoder(response)
        right = decoder.feed

        def feed(chunk):
            if chunk.startswith(b":"):
                self.failures = 0
            return right(chunk)

        decoder.feed = feed
        return decoder


class OverflowsTimerAt31Bits(FaultyClient):
    """Expire immediately if a timeout in milliseconds has more than 31 bits."""

    scenario, kind, breaks = "heartbeat-of-a-month", "count", "TW-CLI-010"

    def silence(self):
        return super().silence() if super().silence() * 1000 < 2**31 else 0.001


class IgnoresWaitOfInbandProblem(FaultyClient):
    scenario, kind, breaks = "problem-in-band", "wait", "TW-CLI-026"

    def fail(self, cut):
        cut.min_wait = 0 if str(cut) == "a problem" else cut.min_wait
        super().fail(cut)


class CapsBackoffAt1Second(FaultyClient):
    scenario, kind, breaks = "backoff-passes-a-second", "wait", "TW-CLI-015"

    def backoff(self, failures):
        return min(max(1.0, self.retry), self.retry * 2 ** (failures - 1)) * random.uniform(0.5, 1.5)


class DoublesBackoffOnlyFourTimes(FaultyClient):
    scenario, kind, breaks = "backoff-passes-a-second", "wait", "TW-CLI-015"

    def backoff(self, failures):
        return super().backoff(min(failures, 5))


class IncreasesBackoffLinearly(FaultyClient):
    scenario, kind, breaks = "backoff-passes-a-second", "wait", "TW-CLI-015"

    def backoff(self, failures):
        return self.retry * failures * random.uniform(0.5, 1.5)


class UsesBackoffWithoutJitter(FaultyClient):
    """Wait without random jitter, so that all clients of a failed server reconnect at the same time."""

    scenario, kind, breaks, is_costly = "waits-are-drawn", "drawn", "TW-CLI-015", True

    def backoff(self, failures):
        return min(30.0, self.retry * 2 ** (failures - 1))


class KeepsFirstHeartbeatInterval(FaultyClient):
    scenario, kind, breaks = "heartbeat-of-each-connection", "count", "TW-CLI-010"
    first = 0.0

    def hello(self, data):
        super().hello(data)
        self.first = self.heartbeat = self.first or self.heartbeat


class AppliesOldHeartbeatToHello(FaultyClient):
    """While waiting for `hello` on a new connection, use the heartbeat interval of the previous connection."""

    scenario, kind, breaks = "heartbeat-of-each-connection", "count", "TW-CLI-010"

    def hello(self, data):
        super().hello(data)
        self.hello_timeout = min(self.hello_timeout, self.silence())


class TimesOutAfterOneHeartbeat(FaultyClient):
    scenario, kind, breaks = "two-heartbeats-are-no-silence", "count", "TW-CLI-010"

    def silence(self):
        return self.heartbeat


class TimesOutAfterTwoHeartbeats(FaultyClient):
    scenario, kind, breaks, is_costly = "two-heartbeats-are-no-silence", "count", "TW-CLI-010", True

    def silence(self):
        return 2 * self.heartbeat


class TimesOutAfterFiveHeartbeats(FaultyClient):
    scenario, kind, breaks = "silence", "wait", "TW-CLI-010"

    def silence(self):
        return 5 * self.heartbeat


class IgnoresPingsBeforeFirstSnapshot(FaultyClient):
    scenario, kind, breaks = "two-pings-and-no-snapshot", "hung", "TW-CLI-012"

    def ping(self, data):
        if self.cursor is not None:
            super().ping(data)


class DoesNotWaitAfterMissingResponse(FaultyClient):
    scenario, kind, breaks, cause = "waits-whatever-broke", "wait", "TW-CLI-009", "RemoteDisconnected"

    def backoff(self, failures):
        return 0.0 if self.cause in self.why else super().backoff(failures)

    def fail(self, cut):
        self.why = str(cut)
        super().fail(cut)


class DoesNotWaitAfter502(DoesNotWaitAfterMissingResponse):
    breaks, cause = "TW-CLI-058", "a response 502"


class DoesNotWaitAfterWrongMediaType(DoesNotWaitAfterMissingResponse):
    breaks, cause = "TW-CLI-058", "a response 200"


class DoesNotWaitAfterRejectedCursor(DoesNotWaitAfterMissingResponse):
    breaks, cause = "TW-CLI-034", "the server refused the cursor"


class DoesNotWaitAfter204(DoesNotWaitAfterMissingResponse):
    breaks, cause = "TW-CLI-033", "204"


class NeverResetsFailureLimit(FaultyClient):
    scenario, kind, breaks = "failures-that-progress-parts", "end", "TW-CLI-018"
    total = 0

    def fail(self, cut):
        self.total += 1
        self.failures = max(self.failures, self.total - 1)
        super().fail(cut)


class CountsAppliedEventsAcrossResyncs(FaultyClient):
    scenario, kind, breaks = "events-between-resyncs-do-not-add-up", "count", "TW-CLI-031"

    def resync(self, breach):
        applied = self.applied
        super().resync(breach)
        self.applied = applied


class TreatsAnyOtherHeadAsAhead(FaultyClient):
    scenario, kind, breaks = "pings-at-the-head", "count", "TW-CLI-012"

    def ping(self, data):
        self.pings = self.pings + 1 if data["head"] != self.cursor else 0
        if self.pings == 2:
            raise CutError("two pings are ahead of the cursor")


class WaitsForHours(FaultyClient):
    scenario, kind, breaks = "retry-after-of-hours", "hung", "TW-CLI-063"
    longest_wait = float("inf")


class IgnoresHeadOfHello(FaultyClient):
    scenario, kind, breaks = "two-pings-below-the-head-of-hello", "hung", "TW-CLI-061"

    def hello(self, data):
        super().hello(data)
        self.hello_head = None


class ComparesHeadsBySeqOnly(FaultyClient):
    scenario, kind, breaks = "two-pings-above-the-id", "hung", "TW-CLI-012"

    def ping(self, data):
        if self.cursor is None or id_key(data["head"])[1] > id_key(self.cursor)[1]:
            super().ping(data)


class NeverReadsJobOfSilentStream(FaultyClient):
    scenario, kind, breaks = "stream-delivers-nothing", "count", "TW-CLI-059"

    def is_held_back(self):
        return False


class ReadsJobOfSilentStreamOnlyForItsEnd(FaultyClient):
    """Read the job of a silent stream, but deliver no state before the job has ended."""

    scenario, kind, breaks = "stream-delivers-nothing", "count", "TW-CLI-059"

    def is_held_back(self):
        held_back = super().is_held_back()
        self.silent = 0 if held_back else self.silent
        return held_back
