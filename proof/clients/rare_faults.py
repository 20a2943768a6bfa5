"""Faulty clients that fail only in one rare case."""

from proof.clients.faulty_client import FaultyClient
from proof.reimplementations.plain_client import id_key
from proof.reimplementations.plain_requests import CutError
from proof.reimplementations.plain_state import MalformedError, State

KEY = "0192f1e5-0000-7000-8000-000000000001"


def mapped(value, change):
    match value:
        case list():
            return [mapped(each, change) for each in value]
        case dict():
            return {name: mapped(each, change) for name, each in value.items()}
    return change(value)


class OffersCompressionForSubmit(FaultyClient):
    """Accept gzip in submit requests, and request an uncompressed response only in GET requests."""

    scenario, kind, breaks = "submit", "header", "TW-SEC-023"

    def submit_headers(self):
        return {"Accept": "text/event-stream", "Accept-Encoding": "gzip, deflate"}


class ReusesOneIdempotencyKey(FaultyClient):
    scenario, kind, breaks = "two-submits", "header", "TW-JOB-036"
    key = KEY

    def send(self, method, url, headers, body):
        if "Idempotency-Key" in headers:
            headers = {**headers, "Idempotency-Key": self.key}
        return super().send(method, url, headers, body)


class UsesConsecutiveIdempotencyKeys(ReusesOneIdempotencyKey):
    """Use consecutive numbers instead of random keys as idempotency keys."""

    counted = 0

    def submit(self):
        UsesConsecutiveIdempotencyKeys.counted += 1
        self.key = f"key-{UsesConsecutiveIdempotencyKeys.counted:020}"
        return super().submit()


class AcceptsDoneAfterAGap(FaultyClient):
    scenario, kind, breaks = "done-over-a-gap", "count", "TW-RES-030"
    is_done = False

    def logged(self, event):
        self.is_done = event.type == "done"
        return super().logged(event)

    def base_of(self, name, on):
        if self.is_done and self.fits(name):
            return self.state
        return super().base_of(name, on)

    def fits(self, name):
        return self.cursor is not None and id_key(name)[0] == id_key(self.cursor)[0]


class AcceptsDoneOfAnotherEpoch(AcceptsDoneAfterAGap):
    scenario = "done-across-epochs"

    def fits(self, name):
        return self.cursor is not None and id_key(name)[0] != id_key(self.cursor)[0]


class IgnoresChecksWithoutOps(FaultyClient):
    """Skip the checks of a diff that has no operations."""

    scenario, kind, breaks = "failed-check-without-ops", "count", "TW-DIF-053"

    class state_type(State):  # noqa: N801 - `PlainClient` has an attribute of this name
        def ops_of(self, diff):
            ops, checks = super().ops_of(diff)
            return ops, checks if ops else []


class IgnoresStableWhenStateIsReplaced(FaultyClient):
    scenario, kind, breaks = "stable-and-the-whole-state", "never", "TW-DIF-060"

    class state_type(State):  # noqa: N801
        is_whole = False

        def ops_of(self, diff):
            ops, checks = super().ops_of(diff)
            self.is_whole = any(op[:2] == ["s", ""] for op in ops)
            return ops, checks

        def verify_stable(self, after):
            if not self.is_whole:
                super().verify_stable(after)


class VerifiesStableOnlyInFirstItem(FaultyClient):
    scenario, kind, breaks = "stable-of-another-item-is-broken", "never", "TW-DIF-060"

    class state_type(State):  # noqa: N801
        def verify_stable(self, after):
            first = State({**self.value, "items": self.value["items"][:1]}, [])
            first.verify_stable(after)


class CountsPingsAsAppliedEvents(FaultyClient):
    """Count every received event as an applied event, including pings."""

    scenario, kind, breaks = "pings-between-resyncs-count-for-nothing", "end", "TW-CLI-031"

    def receive(self, event):
        if event.type not in {"snapshot", "message", "done"}:
            self.applied += 1
        if self.applied >= 256:
            self.applied = self.resyncs = 0
        return super().receive(event)


class CountsPingsAcrossEvents(FaultyClient):
    scenario, kind, breaks = "ping-after-each-event-up-to-the-head-of-hello", "count", "TW-CLI-061"

    def logged(self, event):
        before = self.pings
        found = super().logged(event)
        self.pings = before
        return found


class CountsNonConsecutivePings(FaultyClient):
    scenario, kind, breaks = "pings-above-that-are-not-in-a-row", "count", "TW-CLI-012"

    def ping(self, data):
        before = self.pings
        super().ping(data)
        self.pings = max(before, self.pings)


class CountsNoSnapshotAsProgress(FaultyClient):
    """Count no snapshot as progress. A correct client excludes only the first snapshot of each connection."""

    scenario, kind, breaks, patience = "snapshot-after-the-first-is-progress", "wait", "TW-CLI-017", 1.0

    def snapshot(self, name, data, *, has_id):
        before = self.failures, self.progress
        super().snapshot(name, data, has_id=has_id)
        self.failures, self.progress = before


class DoesNotWaitAfterRetry0(FaultyClient):
    scenario, kind, breaks = "retry-of-nothing", "wait", "TW-CLI-016"

    def backoff(self, failures):
        return super().backoff(failures) if self.retry > 0.001 else 0.0


class IgnoresRetryFieldOfGoaway(FaultyClient):
    scenario, kind, breaks = "retry-of-goaway-is-the-base", "wait", "TW-CLI-016"
    before = 1.0

    def receive(self, event):
        if event.type == "goaway":
            self.retry = self.before
        self.before = self.retry
        return super().receive(event)


class CapsGoawayWaitAt700Ms(FaultyClient):
    scenario, kind, breaks, why = "goaway", "wait", "TW-CLI-019", "goaway"

    def fail(self, cut):
        if str(cut) == self.why:
            cut = CutError(self.why, min_wait=min(cut.min_wait, 0.7), counts=cut.counts)
        super().fail(cut)


class CapsInbandProblemWaitAt700Ms(CapsGoawayWaitAt700Ms):
    scenario, breaks, why = "problem-in-band", "TW-CLI-026", "a problem"


class AcceptsWrongDigestAfterResync(FaultyClient):
    """Accept a wrong digest after a resync."""

    scenario, kind, breaks = "wrong-digest-twice", "count", "TW-CLI-021"

    def verify(self, done):
        try:
            super().verify(done)
        except MalformedError:
            if not self.resyncs:
                raise


class TrimsDeliveredTexts(FaultyClient):
    """Trim the texts that are delivered to the user, but not the texts in the client's own state."""

    scenario, kind, breaks = "blanks-and-line-ends", "value", "TW-CLI-052"

    @staticmethod
    def changed(text):
        return text.rstrip() if isinstance(text, str) else text

    def deliver_value(self, index, value, before):
        super().deliver_value(index, mapped(value, self.changed), before)

    def finish(self, done):
        end = super().finish(done)
        return end | {"value": mapped(end.get("value"), self.changed)}


class NormalizesLineEnds(TrimsDeliveredTexts):
    @staticmethod
    def changed(text):
        return text.replace("\r\n", "\n") if isinstance(text, str) else text


class DeliversNullForFalsyValues(TrimsDeliveredTexts):
    """Deliver null instead of 0, false and empty values other than strings, as `value or None` does."""

    scenario = "values-of-nothing"

    @staticmethod
    def changed(value):
        return value if value or isinstance(value, str) else None
