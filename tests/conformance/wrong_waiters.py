"""Wrong clients: what they take for a cut, and how long they wait."""

import time

from conformance.plain_client import key_of
from conformance.plain_requests import CutError, EndError
from conformance.wrong_clients import WrongClient

# ---- cuts and waits ------------------------------------------------------------------------------------------


class TakesTheEndOfTheBodyForSuccess(WrongClient):
    scenario, kind = "body-ends-before-done", "value"

    def at_eof(self):
        raise EndError("succeeded", value=self.last())


class GivesUpAtTheFirstCut(WrongClient):
    scenario, kind = "body-ends-before-done", "end"

    def fail(self, cut):
        raise EndError("connection_error", detail=str(cut))


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


class CountsGoawayAsAFailure(WrongClient):
    scenario, kind = "goaway-after-progress", "end"

    def goaway(self, data):
        raise CutError("goaway", least=max(0.1, data["retry_ms"] / 1000))

    def moved(self, state, name, *, forward=True):
        failures = self.failures
        super().moved(state, name, forward=forward)
        self.failures = failures


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
