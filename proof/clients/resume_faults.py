"""Faulty clients with errors in request URLs, when they resume after a lost connection, or when a job ends."""

from proof.clients.faulty_client import FaultyClient
from proof.reimplementations.plain_client import id_key
from proof.reimplementations.plain_requests import EndError
from proof.reimplementations.plain_state import ENDS, MalformedError


class TakesCursorFromPing(FaultyClient):
    scenario, kind, breaks = "ids-of-what-is-not-logged", "cursor", "TW-CLI-002"
    named = None

    def receive(self, event):
        self.named = event.id if event.own_id else self.named
        return super().receive(event)

    def cursor_to_send(self):
        return self.cursor and (self.named or self.cursor)


class DropsCursorOnEmptyId(FaultyClient):
    scenario, kind, breaks = "ids-of-what-is-not-logged", "cursor", "TW-CLI-002"
    named = ""

    def receive(self, event):
        self.named = event.id if event.own_id else self.named
        return super().receive(event)

    def cursor_to_send(self):
        return self.cursor if self.named else None


class SendsHighestId(FaultyClient):
    scenario, kind, breaks = "cut-after-a-rewind", "cursor", "TW-CLI-002"
    highest = None

    def advance(self, state, name, *, forward=True):
        self.highest = max(self.highest or name, name, key=id_key)
        super().advance(state, name, forward=forward)

    def cursor_to_send(self):
        return self.cursor and self.highest


class RestoresOldCursorAfterResync(FaultyClient):
    scenario, kind, breaks = "cut-after-a-resync", "cursor", "TW-CLI-028"
    old_cursor = ""
    asked = False

    def resync(self, breach):
        self.old_cursor, self.asked = self.cursor or self.old_cursor, False
        super().resync(breach)

    def cursor_to_send(self):
        cursor = self.old_cursor if self.cursor is None and self.asked else self.cursor
        self.asked = self.old_cursor != ""
        return cursor


class EndsOnDoneOfOldEpoch(FaultyClient):
    scenario, kind, breaks = "done-of-an-old-epoch", "end", "TW-CLI-023"

    def logged(self, event):
        if event.type == "done" and self.is_repeat(event.id):
            return self.finish(self.json.parse(event.data))
        return super().logged(event)


class NumbersEventsWithoutIdItself(FaultyClient):
    """Treat a diff without an id as if it had the next expected id."""

    scenario, kind, breaks = "logged-events-without-an-id", "never", "TW-CLI-030"

    def has_id(self, event):
        return True

    def logged(self, event):
        if event.type == "message" and not event.own_id and self.cursor:
            epoch, seq = id_key(self.cursor)
            event.id = f"{epoch}-{seq + 1}"
        return super().logged(event)


class AcceptsSnapshotWithoutId(FaultyClient):
    scenario, kind, breaks = "logged-events-without-an-id", "never", "TW-CLI-030"

    def has_id(self, event):
        return True

    def snapshot(self, name, data, *, has_id):
        if not has_id and self.state is not None:
            self.state = self.state_type(data["state"], data["columns"])
            self.deliver()
        super().snapshot(name, data, has_id=has_id)


class RetriesReadOfExpiredJob(FaultyClient):
    scenario, kind, breaks = "204-and-the-job-is-gone", "count", "TW-CLI-038"

    def judge_read(self, response):
        pass


class FollowsOnlyTemporaryRedirects(FaultyClient):
    scenario, kind, breaks = "redirects-of-all-kinds", "end", "TW-CLI-044"

    def send(self, method, url, headers, body):
        response = super().send(method, url, headers, body)
        if response.status in {301, 303, 308}:
            self.refuse(response)
        return response


class NeverResetsRedirectCount(FaultyClient):
    scenario, kind, breaks = "redirects-of-all-kinds", "end", "TW-CLI-045"
    count = 0

    def judge_redirect(self, method, there, redirects):
        self.count += 1
        super().judge_redirect(method, there, self.count)


class ResolvesLinksAgainstRequestUrl(FaultyClient):
    scenario, kind, breaks = "link-of-hello-after-a-redirect", "path", "TW-CLI-025"

    def open(self):
        asked, response = self.stream_url, super().open()
        response.url = asked
        return response


class TakesJobIdOnlyFromHello(FaultyClient):
    scenario, kind, breaks = "submit-and-a-cut-before-hello", "count", "TW-CLI-006"
    got_hello = False

    def open(self):
        if self.command["do"] == "submit" and not self.got_hello:
            return self.submit()
        return super().open()


class RefreshesCredentialsOnlyOnce(FaultyClient):
    scenario, kind, breaks = "401-again-later", "end", "TW-CLI-035"

    def request(self, *args):
        response = super().request(*args)
        if len(self.credentials) < len(self.command.get("credentials", ())):
            self.credentials = self.credentials[:1]
        return response


class MatchesMediaTypeByPrefix(FaultyClient):
    scenario, kind, breaks = "media-type-that-holds-the-word", "never", "TW-FRM-019"

    def request(self, *args):
        response = super().request(*args)
        kind = response.headers.get("Content-Type", "")
        response.is_stream = lambda: response.status == 200 and kind.lower().startswith("text/event-stream")
        return response


class IgnoresStatusOfStreams(FaultyClient):
    scenario, kind, breaks, statuses = "stream-under-another-status", "never", "TW-FRM-019", (200, 599)

    def request(self, *args):
        response = super().request(*args)
        low, high = self.statuses
        if response.headers.get_content_type() == "text/event-stream" and low <= response.status <= high:
            response.is_stream = lambda: True
        return response


class AcceptsAny2xxAsStream(IgnoresStatusOfStreams):
    statuses = (200, 299)


class EndsOnItsOwnCancel(FaultyClient):
    scenario, kind, breaks = "cancel-that-comes-too-late", "end", "TW-CLI-051"

    def cancel(self):
        super().cancel()
        raise EndError("cancelled", value=self.last(), incomplete=True)


class ReportsCancelledAfterLateCancel(FaultyClient):
    scenario, kind, breaks = "cancel-that-comes-too-late", "end", "TW-CLI-051"

    def finish(self, done):
        return super().finish(done) | ({"end": "cancelled"} if self.cancelled else {})


class ReportsItemsInOrderOfCompletion(FaultyClient):
    scenario, kind, breaks = "batch-with-a-failed-item", "items", "TW-BAT-010"

    def deliver(self):
        super().deliver()
        items = self.state.value["items"]
        self.ended = [*getattr(self, "ended", ())]
        self.ended += [at for at, item in enumerate(items) if item["status"] in ENDS and at not in self.ended]

    def finish(self, done):
        end = super().finish(done)
        return end | {"items": [end["items"][at] for at in self.ended]} if "items" in end else end


class DeliversOnlyFirstItemOfSnapshot(FaultyClient):
    scenario, kind, breaks = "batch-over-a-snapshot", "value", "TW-BAT-010"
    opens = False

    def snapshot(self, name, data, *, has_id):
        self.opens = True
        super().snapshot(name, data, has_id=has_id)
        self.opens = False

    def deliver_value(self, index, value, before):
        if not (self.opens and index):
            super().deliver_value(index, value, before)


class ReportsCancelledItemAsFailed(FaultyClient):
    scenario, kind, breaks = "batch-over-a-snapshot", "items", "TW-BAT-011"

    def finish(self, done):
        end = super().finish(done)
        for item in end.get("items", ()):
            item["status"] = item["status"].replace("cancelled", "failed")
        return end


class RedeliversValueOnPing(FaultyClient):
    scenario, kind, breaks = "pings-at-the-head", "again", "TW-CLI-052"

    def ping(self, data):
        super().ping(data)
        self.deliver_value(0, self.last(), self.last())


class RedeliversValueOnDuplicate(FaultyClient):
    scenario, kind, breaks = "one-event-again", "again", "TW-CLI-052"

    def is_repeat(self, name):
        known = super().is_repeat(name)
        if known:
            self.deliver_value(0, self.last(), self.last())
        return known


class LeaksCredentialsInErrors(FaultyClient):
    scenario, kind, breaks = "401-and-no-word-of-the-token", "secret", "TW-SEC-013"

    def refuse(self, response):
        try:
            super().refuse(response)
        except EndError as error:
            error.report["detail"] = f"{response.url} with {self.credentials} was refused"
            raise


class ReportsBatchOfOneAsSingleInput(FaultyClient):
    scenario, kind, breaks = "batch-of-one", "items", "TW-BAT-010"

    def start(self, job):
        super().start(job)
        self.batch = len(self.command.get("inputs", ())) > 1


class GivesUpOn408(FaultyClient):
    scenario, kind, breaks = "408", "end", "TW-CLI-064"

    def judge_status(self, response, wait):
        if response.status == 408:
            self.refuse(response)
        super().judge_status(response, wait)


class GivesUpOnSubmit408(FaultyClient):
    scenario, kind, breaks = "submit-408", "end", "TW-CLI-064"

    def send(self, method, url, headers, body):
        response = super().send(method, url, headers, body)
        if response.status == 408 and method == "POST":
            self.refuse(response)
        return response


class RetriesOnlyKnown5xx(FaultyClient):
    scenario, kind, breaks = "520", "end", "TW-CLI-058"

    def judge_status(self, response, wait):
        if response.status not in {500, 502, 503, 504}:
            self.refuse(response)
        super().judge_status(response, wait)


class RequiresValueOfEachItem(FaultyClient):
    scenario, kind, breaks = "item-without-a-value", "count", "TW-FRM-076"

    def advance(self, state, name, *, forward=True):
        if any("value" not in item for item in state.value["items"]):
            raise MalformedError("an item has no value")
        super().advance(state, name, forward=forward)


class RefreshesCredentialsOnlyForReads(FaultyClient):
    scenario, kind, breaks = "submit-401", "end", "TW-CLI-035"

    def send(self, method, url, headers, body):
        response = super().send(method, url, headers, body)
        if response.status == 401 and method == "POST":
            self.refuse(response)
        return response


class ResubmitsWithoutWaiting(FaultyClient):
    scenario, kind, breaks = "submit-503-without-a-wait", "wait", "TW-CLI-040"

    def backoff(self, failures):
        return super().backoff(failures) if self.job else 0.0


class TakesIdOfBlockWithoutData(FaultyClient):
    """Apply a diff without an id under the id of the block before it, as an EventSource does."""

    scenario, kind, breaks = "id-of-a-block-without-data", "never", "TW-CLI-060"

    def has_id(self, event):
        return True
