"""Faulty clients with errors in requests, in the handling of responses, or in the values delivered to the user."""

import json
import time

from proof.clients.faulty_client import FaultyClient
from proof.reimplementations.plain_client import id_key
from proof.reimplementations.plain_requests import CutError, EndError
from proof.reimplementations.plain_state import MalformedError, State

# ---- requests ----------------------------------------------------------------------------------------------------


class SendsCursorInWrongHeader(FaultyClient):
    scenario, kind, breaks = "reset-after-an-event", "cursor", "TW-CLI-007"

    def send(self, method, url, headers, body):
        names = {"Last-Event-ID": "X-Last-Event"}
        return super().send(method, url, {names.get(name, name): one for name, one in headers.items()}, body)


class RequestsAnyMediaType(FaultyClient):
    scenario, kind, breaks, control = "closed-inside-an-event", "header", "TW-CLI-008", "discovery"

    def send(self, method, url, headers, body):
        return super().send(method, url, headers | {"Accept": "*/*"}, body)


class RequestsWholeLogAtFirst(FaultyClient):
    scenario, kind, breaks, control = "two-jobs-in-turn", "cursor", "TW-CLI-005", "discovery"

    def cursor_to_send(self):
        return self.cursor or "0-0"


class RestoresCursorWithoutState(FaultyClient):
    """Store the cursor without the state, so that later diffs have no state to which they apply."""

    scenario, kind, breaks = "user-goes-on-later", "count", "TW-CLI-003"

    def restore(self, saved):
        super().restore(saved)
        if saved:
            self.state = None


class CheckpointsCursorAheadOfState(FaultyClient):
    scenario, kind, breaks = "user-goes-on-later", "cursor", "TW-CLI-001"

    def checkpoint(self):
        epoch, seq = id_key(self.cursor)
        return super().checkpoint() | {"cursor": f"{epoch}-{seq + 1}"}


class DropsCursorOnRedirect(FaultyClient):
    scenario, kind, breaks = "redirect-with-credentials", "cursor", "TW-CLI-044"

    def send(self, method, url, headers, body):
        if not url.endswith("/events"):
            headers = {name: value for name, value in headers.items() if name != "Last-Event-ID"}
        return super().send(method, url, headers, body)


class FollowsRedirectsForever(FaultyClient):
    scenario, kind, breaks = "redirects-without-end", "hung", "TW-CLI-045"

    def judge_redirect(self, method, there, redirects):
        super().judge_redirect(method, there, 1)
        time.sleep(0.02)


class UsesShortIdempotencyKey(FaultyClient):
    scenario, kind, breaks = "submit", "header", "TW-JOB-036"

    def submit_headers(self):
        return super().submit_headers() | {"Idempotency-Key": "1"}


class SubmitsWithoutIdempotencyKey(FaultyClient):
    scenario, kind, breaks = "submit-lost", "repeat", "TW-CLI-041"

    def send(self, method, url, headers, body):
        kept = {name: value for name, value in headers.items() if name != "Idempotency-Key"}
        return super().send(method, url, kept, body)


class DoesNotRetryLostSubmit(FaultyClient):
    scenario, kind, breaks = "submit-lost", "end", "TW-CLI-054"

    def may_repeat(self):
        return False


# ---- responses ---------------------------------------------------------------------------------------------------


class DropsPointerOfProblem(FaultyClient):
    scenario, kind, breaks = "submit-422", "problem", "TW-CLI-039"

    def refuse(self, response):
        try:
            super().refuse(response)
        except EndError as error:
            error.report["problem"].pop("pointer", None)
            raise


class Retries405Forever(FaultyClient):
    scenario, kind, breaks, patience = "405", "count", "TW-CLI-042", 0.3

    def judge_status(self, response, wait):
        if response.status == 405:
            raise CutError("405")
        super().judge_status(response, wait)


class DecidesByProblemTitle(FaultyClient):
    scenario, kind, breaks = "unknown-code", "end", "TW-ERR-011"

    def judge_status(self, response, wait):
        if b"no such job" in response.peek():
            self.refuse(response)
        super().judge_status(response, wait)


class GivesUpOnUnknownProblemCode(FaultyClient):
    scenario, kind, breaks = "unknown-code", "end", "TW-ERR-012"

    def judge_status(self, response, wait):
        if b"errors.example" in response.peek():
            self.refuse(response)
        super().judge_status(response, wait)


class CrashesOnRetryAfterDate(FaultyClient):
    scenario, kind, breaks = "retry-after-as-a-date", "died", "TW-CLI-046"

    def retry_after(self, response):
        return float(response.headers.get("Retry-After", 0))


class AcceptsNegativeRetryAfter(FaultyClient):
    """Take a negative `Retry-After` for a wait that ends immediately."""

    scenario, kind, breaks = "retry-after-below-zero", "wait", "TW-CLI-046"

    def judge_status(self, response, wait):
        if response.status == 503 and response.headers.get("Retry-After", "").startswith("-"):
            raise CutError("wait", min_wait=0, counts=False)
        super().judge_status(response, wait)


class RereadsJobWithoutWaiting(FaultyClient):
    scenario, kind, breaks = "204-and-a-read-that-has-to-wait", "wait", "TW-CLI-040"

    def wait_of_read(self, response):
        return 0.0


class MatchesHeaderNamesByCase(FaultyClient):
    scenario, kind, breaks = "header-names-in-other-letters", "count", "TW-FRM-019"

    def request(self, *args):
        response = super().request(*args)
        if "Content-Type" not in response.headers.keys():  # noqa: SIM118 - `in headers` would ignore case
            response.is_stream = lambda: False
        return response


class IgnoresContentEncoding(FaultyClient):
    scenario, kind, breaks = "content-coding", "never", "TW-FRM-042"

    def request(self, *args):
        response = super().request(*args)
        del response.headers["Content-Encoding"]
        return response


class GivesUpOnFirstWrongMediaType(FaultyClient):
    """Give up at the first response with another media type, although the server served the protocol before."""

    scenario, kind, breaks = "stream-of-another-media-type", "end", "TW-CLI-058"

    def judge_status(self, response, wait):
        if response.status == 200:
            self.refuse(response)
        super().judge_status(response, wait)


class ReportsSuccessForInvalidJob(FaultyClient):
    scenario, kind, breaks = "204-and-a-job-that-is-no-job", "end", "TW-CLI-055"

    def read_job(self, **members):
        try:
            return super().read_job(**members)
        except EndError:
            return {"end": "succeeded", "value": None}


class RejectsUnknownCapabilities(FaultyClient):
    scenario, kind, breaks, control = "discovery", "end", "TW-DSC-009", "404"

    def request(self, *args):
        response = super().request(*args)
        if args[1].endswith("/v1") and b"telepathy" in response.peek():
            raise EndError("protocol_error", detail="a capability")
        return response


class AcceptsAnyProtocol(FaultyClient):
    scenario, kind, breaks, control = "discovery-of-another-protocol", "end", "TW-DSC-007", "404"

    def discover(self):
        self.request("GET", f"{self.base}/v1").close()
        raise EndError("discovered", incomplete=False)


class WaitsForeverForHello(FaultyClient):
    scenario, kind, breaks, patience, is_costly = "no-hello-in-time", "hung", "TW-CLI-011", 0.4, True

    hello_timeout = 3600.0


class WaitsForeverForStatusLine(FaultyClient):
    scenario, kind, breaks, patience, is_costly = "no-status-line-in-time", "hung", "TW-CLI-011", 0.4, True
    response_timeout = 3600.0


class IgnoresInbandProblems(FaultyClient):
    scenario, kind, breaks = "fatal-problem-in-band", "count", "TW-CLI-026"

    def receive(self, event):
        return None if event.type == "problem" else super().receive(event)


class RetriesFatalInbandProblem(FaultyClient):
    scenario, kind, breaks = "fatal-problem-in-band", "count", "TW-CLI-026"

    def receive(self, event):
        if event.type == "problem":
            raise CutError("a problem")
        return super().receive(event)


# ---- protocol errors ---------------------------------------------------------------------------------------------


class AcceptsSnapshotWithoutColumns(FaultyClient):
    scenario, kind, breaks = "snapshot-without-columns", "never", "TW-CLI-030"

    def snapshot(self, name, data, *, has_id):
        super().snapshot(name, {"columns": [], **data}, has_id=has_id)


class AcceptsDoneWithoutDigest(FaultyClient):
    scenario, kind, breaks = "done-without-a-digest", "count", "TW-FRM-076"

    def verify(self, done):
        if "digest" in done:
            super().verify(done)


class RequiresOptionalDoneMembers(FaultyClient):
    scenario, kind, breaks = "done-in-few-words", "count", "TW-FRM-076"

    def verify(self, done):
        if not {"usage", "check", "expires_at"} <= done.keys():
            raise MalformedError("done lacks a member")
        super().verify(done)


class TreatsUnknownOpsAsMalformed(FaultyClient):
    scenario, kind, breaks = "fourth-unknown-op", "end", "TW-CLI-032"

    def resync(self, breach):
        super().resync(MalformedError(str(breach)))


class GivesUpOnUnknownGoawayReason(FaultyClient):
    scenario, kind, breaks = "goaway-for-an-unknown-reason", "end", "TW-FRM-074"

    def goaway(self, data):
        if data["reason"] not in {"restart", "rotate", "slow_consumer", "auth_expired"}:
            raise EndError("protocol_error", detail=data["reason"])
        super().goaway(data)


class RequiresSeqToContinueInNewEpoch(FaultyClient):
    scenario, kind, breaks = "first-seq-of-an-epoch", "count", "TW-RES-048"

    def snapshot(self, name, data, *, has_id):
        epoch, seq = id_key(name)
        if self.cursor and epoch != id_key(self.cursor)[0] and seq != id_key(self.cursor)[1] + 1:
            raise MalformedError("the sequence number does not continue")
        super().snapshot(name, data, has_id=has_id)


class TruncatesIdsTo32Bits(FaultyClient):
    scenario, kind, breaks = "ids-beyond-32-bits", "count", "TW-RES-002"

    def is_repeat(self, name):
        def wrapped(one):
            return tuple(number % 2**32 for number in id_key(one))

        return self.cursor is not None and wrapped(name) <= wrapped(self.cursor)


class AttributesLastIdToEveryEvent(FaultyClient):
    """If an event has no id field, attribute the last event id to it, as an EventSource does."""

    scenario, kind, breaks = "unknown-ephemeral-event", "count", "TW-FRM-045"

    def unknown(self, event):
        if event.id:
            event.own_id = True
        super().unknown(event)


# ---- delivery to the user ----------------------------------------------------------------------------------------


class ReportsPartialFailureAsFailed(FaultyClient):
    scenario, kind, breaks = "batch-with-a-failed-item", "end", "TW-BAT-011"

    def finish(self, done):
        end = super().finish(done)
        return end | ({"end": "failed"} if end["end"] == "partially_failed" else {})


class DropsValueOfFailedJob(FaultyClient):
    scenario, kind, breaks = "failed", "value", "TW-DIF-006"

    def finish(self, done):
        end = super().finish(done)
        return end | ({"value": None} if end["end"] == "failed" else {})


class DeliversEachChangeLate(FaultyClient):
    """Deliver a change only when the next change has arrived."""

    scenario, kind, breaks = "handed-over-at-once", "promptness", "TW-CLI-052"
    pending = None

    def deliver(self):
        last, self.pending = self.pending, self.state
        if last is not None:
            now, self.state = self.state, last
            super().deliver()
            self.state = now

    def finish(self, done):
        super().deliver()
        return super().finish(done)


class RedeliversWholeTextOfSnapshot(FaultyClient):
    scenario, kind, breaks = "compacted-snapshot", "text", "TW-DIF-062"

    def snapshot(self, name, data, *, has_id):
        self.delivered.clear()
        super().snapshot(name, data, has_id=has_id)


class DoesNotReportTextRetractedBySnapshot(FaultyClient):
    """Never report text that a new attempt retracted."""

    scenario, kind, breaks = "restart-with-a-common-start", "text", "TW-DIF-061"

    def snapshot(self, name, data, *, has_id):
        self.opens = True
        super().snapshot(name, data, has_id=has_id)
        self.opens = False

    opens = False

    def difference(self, old, new):
        return (0, new) if self.opens else super().difference(old, new)


class RetractsWholeTextAtRestart(FaultyClient):
    """Retract the whole text when a new attempt starts, although the snapshot may continue this text."""

    scenario, kind, breaks = "restart-that-continues", "retracted", "TW-DIF-062"
    restarts = False

    def snapshot(self, name, data, *, has_id):
        self.restarts = data["reason"] == "restart"
        super().snapshot(name, data, has_id=has_id)
        self.restarts = False

    def difference(self, old, new):
        return (len(old), new) if self.restarts else super().difference(old, new)


class DigestsEscapedJson(FaultyClient):
    scenario, kind, breaks = "names-beyond-the-basic-plane", "count", "TW-DIF-056"
    state_type = type(
        "Escaped",
        (State,),
        {"form": lambda self, value: json.dumps(value, sort_keys=True, separators=(",", ":"))},
    )


class DigestSortsNamesByCodePoints(FaultyClient):
    scenario, kind, breaks = "names-beyond-the-basic-plane", "count", "TW-DIF-056"
    state_type = type("Sorted", (State,), {"order": lambda self, name: name})


class DigestsNumbersInPythonFormat(FaultyClient):
    scenario, kind, breaks = "numbers-at-the-edge", "count", "TW-DIF-056"
    state_type = type("Written", (State,), {"number": lambda self, value: repr(value)})
