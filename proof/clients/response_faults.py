"""Faulty clients with errors in the handling of responses, in the handling of ended jobs, or in the reports to the user."""

import contextlib
import threading
from typing import ClassVar

from proof.clients.faulty_client import FaultyClient
from proof.reimplementations.plain_requests import CutError, EndError
from proof.reimplementations.plain_state import Decoder

# ---- responses -------------------------------------------------------------------------------------------------


class Ignores204(FaultyClient):
    scenario, kind = "204-and-the-job-runs", "value"

    def read_job(self, **_):
        raise EndError("succeeded", value=self.last())


class GivesUpOn400(FaultyClient):
    scenario, kind = "400-on-a-cursor", "end"

    def judge_status(self, response, wait):
        if response.status == 400:
            self.refuse(response)
        super().judge_status(response, wait)


class Retries404Forever(FaultyClient):
    scenario, kind, patience = "404", "count", 0.3

    def judge_status(self, response, wait):
        if response.status == 404:
            raise CutError("404")
        super().judge_status(response, wait)

    def backoff(self, failures):
        return 0.05


class Retries410Forever(FaultyClient):
    scenario, kind, patience = "410", "count", 0.3

    def judge_status(self, response, wait):
        if response.status == 410:
            raise CutError("410")
        super().judge_status(response, wait)

    def backoff(self, failures):
        return 0.05


class GivesUpOnFirst503(FaultyClient):
    scenario, kind = "retry-after", "end"

    def judge_status(self, response, wait):
        self.refuse(response)


class IgnoresRetryAfter(FaultyClient):
    scenario, kind = "retry-after", "wait"

    def retry_after(self, response):
        return 0.0


class RefreshesCredentialsForever(FaultyClient):
    scenario, kind = "401-twice", "count"

    def judge_status(self, response, wait):
        if response.status == 401:
            raise CutError("401")
        super().judge_status(response, wait)


class GivesUpAfterTenServerErrors(FaultyClient):
    scenario, kind, is_costly = "eleven-faults", "end", True
    faults = 0

    def judge_status(self, response, wait):
        self.faults += response.status == 502
        if self.faults > 10:
            self.refuse(response)
        super().judge_status(response, wait)


class CountsRequestedWaitsAsFailures(FaultyClient):
    scenario, kind, is_costly = "requested-waits-are-no-failures", "end", True

    def fail(self, cut):
        cut.counts = True
        super().fail(cut)


class CountsWaitsOfInbandProblemsAsFailures(FaultyClient):
    scenario, kind, breaks = "requested-waits-are-no-failures", "end", "TW-CLI-026"
    is_costly = True

    def fail(self, cut):
        if str(cut) == "a problem":
            cut.counts = True
            self.failures += 1
        super().fail(cut)


class CapsRetryAfterAt1Second(FaultyClient):
    scenario, kind = "retry-after", "wait"

    def retry_after(self, response):
        return min(1.0, super().retry_after(response))


class AcceptsAnyMediaType(FaultyClient):
    scenario, kind, breaks = "stream-of-another-media-type", "never", "TW-FRM-019"

    def request(self, *args):
        response = super().request(*args)
        response.is_stream = lambda: response.status == 200
        return response


class FollowsRedirectsToOtherOrigins(FaultyClient):
    scenario, kind = "redirect-to-another-origin", "foreign"

    def judge_redirect(self, method, there, redirects):
        pass


class SendsCredentialsToOtherOrigins(FaultyClient):
    scenario, kind = "link-to-another-origin", "foreign"

    def is_same_origin(self, url):
        return True


class DropsCredentialsOnRedirect(FaultyClient):
    scenario, kind = "redirect-with-credentials", "header"

    def is_same_origin(self, url):
        return "replica" not in url


class ResubmitsAfterDisconnect(FaultyClient):
    scenario, kind = "submit-and-a-cut", "count"

    def open(self):
        if self.command["do"] == "submit" and self.cursor:
            return self.submit()
        return super().open()


class RetriesSubmitWithoutKey(FaultyClient):
    scenario, kind, breaks = "submit-lost-without-a-key", "count", "TW-JOB-037"

    def may_repeat(self):
        return True


class RetriesSubmitWithoutKeyAfter504(FaultyClient):
    scenario, kind, breaks = "submit-of-a-gateway-that-did-not-wait", "count", "TW-JOB-037"

    def refuse(self, response):
        if response.status != 504:
            super().refuse(response)


class GivesUpWhenDiscoveryFails(FaultyClient):
    scenario, kind = "submit-lost-in-a-restart", "end"

    def on_failed_discovery(self, cut):
        raise EndError("connection_error", detail=str(cut))


class RetriesSubmitWhenDiscoveryFails(FaultyClient):
    """Treat a failed discovery request as permission to repeat the submit."""

    scenario, kind, breaks = "submit-lost-without-a-key-in-a-restart", "count", "TW-JOB-037"

    def may_repeat(self):
        try:
            return super().may_repeat()
        except CutError:
            return True

    def on_failed_discovery(self, cut):
        raise cut


class RetriesSubmitWithAnotherKey(FaultyClient):
    scenario, kind = "submit-409", "repeat"
    count = 0

    def send(self, method, url, headers, body):
        self.count += 1
        if "Idempotency-Key" in headers:
            headers = headers | {"Idempotency-Key": f"{headers['Idempotency-Key']}{self.count}"}
        return super().send(method, url, headers, body)


class AcceptsHelloOfAnyJob(FaultyClient):
    scenario, kind = "hello-of-another-job", "never"

    def hello(self, data):
        super().hello(data | {"job": self.job})


class IgnoresEventsLinkOfHello(FaultyClient):
    scenario, kind = "link-of-hello", "path"

    def hello(self, data):
        url = self.stream_url
        super().hello(data)
        self.stream_url = url


class AcceptsCompressedStreams(FaultyClient):
    scenario, kind, control, breaks = "handed-over-at-once", "header", "discovery", "TW-SEC-023"

    def send(self, method, url, headers, body):
        return super().send(method, url, headers | {"Accept-Encoding": "gzip"}, body)


# ---- ends and reports ----------------------------------------------------------------------------------------


class ReconnectsAfterDone(FaultyClient):
    scenario, kind, control = "done-closes", "count", "404"

    def follow(self, opened):
        end = super().follow(opened)
        self.close_response(self.open())
        return end


class LeavesSocketOpen(FaultyClient):
    scenario, kind = "user-stops-reading", "open"
    left: ClassVar[list] = []

    def close_response(self, response):
        self.left.append(response)


class LeavesBackgroundTask(FaultyClient):
    """Leave a background task that keeps reading and reconnects after the user has stopped."""

    scenario, kind = "user-stops-reading", "count"

    def checkpoint(self):
        threading.Thread(target=self.goes_on, daemon=True).start()
        return super().checkpoint()

    def goes_on(self):
        for response in self.responses:
            response.close()
        with contextlib.suppress(CutError, EndError):
            self.open().close()


class WaitsForEndOfBodyAfterDone(FaultyClient):
    scenario, kind = "done-closes", "hung"
    ended = None

    def receive(self, event):
        self.ended = self.ended or super().receive(event)

    def at_eof(self):
        if self.ended is None:
            super().at_eof()
        raise EndError(**self.ended)


class LosesEventsReceivedWithDone(FaultyClient):
    scenario, kind = "done-in-one-piece", "end"

    class Looks(Decoder):
        def feed(self, chunk):
            events = super().feed(chunk)
            return [event for event in events if event.type == "done"] or events

    def base_of(self, name, on):
        return self.state

    def verify(self, done):
        if self.state is None:
            raise EndError("connection_error", detail="no state was received")


class HangsWhenJobFails(FaultyClient):
    scenario, kind = "failed", "hung"

    def finish(self, done):
        return None if done["status"] == "failed" else super().finish(done)


class DropsErrorOfFailedJob(FaultyClient):
    scenario, kind = "failed", "problem"

    def finish(self, done):
        return {name: value for name, value in super().finish(done).items() if name != "problem"}


class ReportsCancelledJobAsFailed(FaultyClient):
    scenario, kind = "cancelled", "end"

    def finish(self, done):
        return super().finish(done) | ({"end": "failed"} if done["status"] == "cancelled" else {})


class DoesNotMarkIncompleteValues(FaultyClient):
    scenario, kind = "410", "incomplete"

    def refuse(self, response):
        try:
            super().refuse(response)
        except EndError as error:
            error.report["incomplete"] = False
            raise


class DropsMembersOfProblem(FaultyClient):
    scenario, kind = "problem-handed-over-whole", "problem"

    def refuse(self, response):
        try:
            super().refuse(response)
        except EndError as error:
            error.report["problem"] = {"code": error.report["problem"]["code"]}
            raise


class MixesUpItems(FaultyClient):
    scenario, kind = "batch", "value"

    def deliver_value(self, index, value, before):
        super().deliver_value((index + 1) % 3 if self.batch else index, value, before)


class CancelsJobWhenUserStops(FaultyClient):
    scenario, kind, breaks = "user-stops-reading", "count", "TW-CLI-049"

    def checkpoint(self):
        self.cancel()
        return super().checkpoint()


class BlocksAfterCancel(FaultyClient):
    scenario, kind = "user-cancels", "hung"

    def cancel(self):
        super().cancel()
        self.sleep(3600.0)


class NeverCancels(FaultyClient):
    scenario, kind = "user-cancels", "promptness"

    def cancel(self):
        pass


class AcceptsCheckpointOfAnotherJob(FaultyClient):
    scenario, kind = "checkpoint-of-another-job", "end"

    def restore(self, saved):
        super().restore(saved and saved | {"job": self.job})


class SharesCursorBetweenJobs(FaultyClient):
    scenario, kind = "two-jobs-in-turn", "cursor"
    cursor = None

    def start(self, job):
        cursor = self.cursor
        super().start(job)
        self.cursor = cursor
