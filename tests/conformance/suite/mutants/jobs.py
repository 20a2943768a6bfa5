"""Submits, reads, cancels, purges and batches that are answered wrongly."""

import asyncio
import json
import re

from conformance.suite.meddling import problem
from conformance.suite.mutants import mutant

CANCEL = "cancels.a_cancel_ends_the_job"
JSON = {"content-type": "application/json", "cache-control": "no-store"}


@mutant("TW-JOB-050", CANCEL)
def cancel_answers_and_runs_on(hooks):
    """A cancel is answered with 202, and the job runs on."""
    body = json.dumps({"items": []}).encode()

    def none(talk):
        if talk.path.endswith("/cancel"):
            talk.body = body
            talk.set_header("content-type", "application/json")

    hooks.requests.append(none)


@mutant("TW-JOB-051", CANCEL)
def cancel_is_not_idempotent(hooks):
    """A second cancel is refused."""

    def refuse(talk):
        seen = hooks.shared.setdefault("cancelled", set())
        again = talk.path.endswith("/cancel") and talk.path in seen
        seen.add(talk.path)
        return problem(409, "jobs.cancelled", retry_after_ms=1) if again else None

    hooks.instead.append(refuse)


@mutant("TW-JOB-056", "batch.a_cancel_of_one_item_leaves_the_others")
def cancel_kills_a_sibling(hooks):
    """A cancel of one item ends all of them."""

    def all_of_them(talk):
        if talk.path.endswith("/cancel") and talk.json == {"items": [1, 1]}:
            talk.body = b"{}"

    hooks.requests.append(all_of_them)


@mutant("TW-JOB-054", "cancels.a_cancel_that_names_no_item_cancels_none")
def cancel_of_any_index(hooks):
    """A cancel of an item that is not there cancels what is."""

    def forgive(talk):
        if talk.path.endswith("/cancel") and talk.json == {"items": [0, 1]}:
            talk.body = b'{"items":[0]}'

    hooks.requests.append(forgive)


@mutant("TW-JOB-057", CANCEL)
def cancel_drops_the_value(hooks):
    """A job that was cancelled loses the value it had."""
    hooks.bodies.append(
        lambda talk, status, body: (
            status,
            re.sub(rb'("status":"cancelled","value":)"[^"]*"', rb'\1""', body),
        )
    )


@mutant("TW-JOB-062", "purges.a_purged_job_is_gone")
def purge_answers_404(hooks):
    """A job that was purged is answered with 404."""

    def forget(talk, status, body):
        return (
            (404, body.replace(b"job_expired", b"job_not_found").replace(b"410", b"404"))
            if status == 410
            else None
        )

    hooks.bodies.append(forget)


@mutant("TW-JOB-060", "purges.a_purge_ends_the_streams_of_the_job")
def purge_without_done(hooks):
    """Readers of a job that is purged get no `done`."""
    hooks.frames.append(
        lambda talk, frame: b":gone\n\n" if b'"status":"cancelled","usage"' in frame else frame
    )


@mutant("TW-JOB-069", "deadlines.a_deadline_fails_what_has_not_ended")
def deadlines_are_ignored(hooks):
    """A deadline changes nothing but the status."""
    hooks.bodies.append(lambda talk, status, body: (status, body.replace(b"deadline_exceeded", b"internal")))


@mutant("TW-JOB-041", "jobs.a_job_that_has_ended_tells_its_end")
def cursor_before_done(hooks):
    """The cursor of a job that has ended is that of its last diff."""

    def earlier(talk, status, body):
        less = lambda found: b'"cursor":"1-%d"' % (int(found[1]) - 1)  # noqa: E731
        return status, re.sub(rb'"cursor":"1-(\d+)"', less, body) if b'"done":{' in body else body

    hooks.bodies.append(earlier)


@mutant("TW-JOB-018", "jobs.a_submit_is_answered_with_the_job")
def submit_answers_200(hooks):
    """A submit is answered with 200."""
    hooks.heads.append(lambda talk, status, headers: 200 if talk.is_submit and status == 201 else status)


@mutant("TW-JOB-019", "jobs.a_submit_may_be_answered_by_the_stream")
def no_content_location(hooks):
    """The stream that answers a submit has no `Content-Location`."""
    hooks.heads.append(lambda talk, status, headers: headers.pop("content-location", None) and None)


@mutant("TW-JOB-004", "jobs.no_answer_about_jobs_may_be_stored", "errors.what_there_is_not_is_refused")
def errors_may_be_stored(hooks):
    """Errors have no `no-store`."""
    hooks.heads.append(
        lambda talk, status, headers: headers.pop("cache-control", None) and None if status >= 400 else None
    )


@mutant("TW-JOB-045", "jobs.jobs_are_listed_newest_first")
def the_list_is_oldest_first(hooks):
    """The list begins with the oldest job."""

    def reverse(talk, status, body):
        if talk.path == "/v1/jobs" and status == 200:
            found = json.loads(body)
            return status, json.dumps(found | {"jobs": found["jobs"][::-1]}).encode()
        return None

    hooks.bodies.append(reverse)


@mutant("TW-JOB-072", "snapshots_only.a_stream_without_diffs_has_snapshots_and_done")
def diffs_0_is_ignored(hooks):
    """`?diffs=0` gives diffs."""

    def ignore(talk):
        talk.scope["query_string"] = talk.scope["query_string"].replace(b"diffs=0", b"diffs=1")

    hooks.requests.append(ignore)


# ---- keys ----------------------------------------------------------------------------------------------------------


@mutant("TW-JOB-028", "idempotency.a_repeated_submit_finds_its_job")
def the_same_key_runs_twice(hooks):
    """The same key starts two jobs."""
    hooks.requests.append(lambda talk: talk.set_header("idempotency-key", None))


@mutant("TW-JOB-031", "idempotency.a_key_with_another_body_is_refused")
def a_key_takes_any_body(hooks):
    """The same key with another body is taken."""

    def first_body(talk):
        if key := talk.header("idempotency-key"):
            talk.body = hooks.shared.setdefault(key, talk.body)

    hooks.requests.append(first_body)


@mutant("TW-JOB-034", "idempotency.a_refused_submit_leaves_its_key_free")
def a_refused_submit_burns_its_key(hooks):
    """The key of a submit that was refused is kept."""

    def burn(talk, status, body):
        if status == 422 and talk.header("idempotency-key"):
            hooks.shared[talk.header("idempotency-key")] = True

    hooks.bodies.append(burn)
    hooks.instead.append(
        lambda talk: (
            problem(422, "idempotency_key_reused")
            if hooks.shared.get(talk.header("idempotency-key"))
            else None
        )
    )


@mutant("TW-JOB-029", "idempotency.a_repeated_submit_finds_its_job")
def a_replay_is_not_told(hooks):
    """A replay has no `Idempotency-Replayed`."""
    hooks.heads.append(lambda talk, status, headers: headers.pop("idempotency-replayed", None) and None)


# ---- batches -------------------------------------------------------------------------------------------------------


@mutant("TW-BAT-001", "batch.each_input_becomes_an_item_in_its_place")
def results_in_wrong_slots(hooks):
    """Results come in another order than their inputs."""

    def reverse(talk):
        if talk.inputs:
            talk.body = json.dumps(talk.json | {"inputs": talk.inputs[::-1]}).encode()
            talk.set_header("content-length", str(len(talk.body)))

    hooks.requests.append(reverse)


@mutant("TW-BAT-004", "batch.an_item_fails_alone")
def a_poisoned_item_fails_all(hooks):
    """An item that fails takes the others with it."""

    def poison(talk):
        if talk.is_submit and b'"fail"' in talk.body and talk.json and "inputs" in talk.json:
            bad = next(each for each in talk.json["inputs"] if "fail" in json.dumps(each))
            talk.body = json.dumps({"inputs": [bad] * len(talk.json["inputs"])}).encode()
            talk.set_header("content-length", str(len(talk.body)))

    hooks.requests.append(poison)


@mutant("TW-BAT-012", "batch.the_company_of_an_item_changes_nothing")
def a_batch_changes_the_result(hooks):
    """An item gives another value in company."""

    def change(talk, status, body):
        return status, body.replace(b"word 3", b"word 4").replace(
            b" tide", b" wave"
        ) if b'"batch":true' in body else body

    hooks.bodies.append(change)


@mutant("TW-BAT-007", "batch.each_input_becomes_an_item_in_its_place")
def one_input_is_no_batch(hooks):
    """A list of one input makes no batch job."""

    def one(talk, status, body):
        return status, body.replace(b'"batch":true', b'"batch":false') if len(talk.inputs) == 1 else body

    hooks.bodies.append(one)


@mutant("TW-BAT-005", "batch.items_end_one_by_one")
def items_end_together(hooks):
    """The end of the first item waits for that of the last."""

    def hold(talk, frame):
        if b'"/items/0/status","succeeded"' in frame and b"items/1" not in frame:
            return re.sub(rb'\{"ops":.*\}', b"[]", frame)
        return frame

    hooks.frames.append(hold)


# ---- owners --------------------------------------------------------------------------------------------------------


@mutant("TW-JOB-044", "ownership.a_job_of_another_principal_is_an_unknown_one")
def anybody_may_read(hooks):
    """Whoever knows the id of a job reads it."""

    def borrow(talk):
        if "/v1/jobs/" in talk.path and talk.header("authorization"):
            owner = hooks.shared.get(talk.path.split("/")[3])
            talk.set_header("authorization", owner or talk.header("authorization"))

    def note(talk, status, body):
        if talk.is_submit and status == 201:
            hooks.shared[json.loads(body)["id"]] = talk.header("authorization")

    hooks.requests.append(borrow)
    hooks.bodies.append(note)


@mutant("TW-JOB-044", "ownership.a_job_of_another_principal_is_an_unknown_one")
def another_principal_is_told_forbidden(hooks):
    """A job of another principal is answered with 403, and so betrayed."""
    hooks.shared["jobs"] = set()

    def note(talk, status, body):
        if talk.is_submit and status == 201:
            hooks.shared["jobs"].add(json.loads(body)["id"])
        known = status == 404 and any(job in talk.path for job in hooks.shared["jobs"])
        return (403, body.replace(b"job_not_found", b"forbidden").replace(b"404", b"403")) if known else None

    hooks.bodies.append(note)


@mutant("TW-SEC-003", "ownership.wrong_credentials_are_refused")
def no_www_authenticate(hooks):
    """401 without `WWW-Authenticate`."""
    hooks.heads.append(lambda talk, status, headers: headers.pop("www-authenticate", None) and None)


@mutant("TW-JOB-046", "ownership.a_list_has_the_callers_jobs_alone")
def the_list_is_everybodys(hooks):
    """The list has the jobs of all callers."""

    def borrow(talk):
        if talk.path == "/v1/jobs":
            talk.set_header("authorization", hooks.shared.get("first") or talk.header("authorization"))
        hooks.shared.setdefault("first", talk.header("authorization"))

    hooks.requests.append(borrow)


# ---- pages ---------------------------------------------------------------------------------------------------------


@mutant("TW-BRW-005", "browser.pages_of_an_allowed_origin_may_read_every_answer")
def errors_without_cors(hooks):
    """Errors do not name the origin."""
    hooks.heads.append(
        lambda talk, status, headers: (
            headers.pop("access-control-allow-origin", None) and None if status >= 400 else None
        )
    )


@mutant("TW-BRW-006", "browser.pages_of_other_origins_may_not")
def every_origin_is_allowed(hooks):
    """Every origin is named back."""

    def name(talk, status, headers):
        if talk.header("origin"):
            headers["access-control-allow-origin"] = talk.header("origin")

    hooks.heads.append(name)


@mutant("TW-BRW-013", "browser.a_stream_token_opens_nothing_else")
def a_stream_token_opens_any_job(hooks):
    """A stream token opens the stream of every job."""

    def redirect(talk):
        token = re.search(rb"token=([^&]+)", talk.scope["query_string"])
        if token and token[1].decode() in hooks.shared:
            talk.path = hooks.shared[token[1].decode()]

    def note(talk, status, body):
        if talk.path.endswith("/stream-token") and status == 200:
            hooks.shared[json.loads(body)["url"].rpartition("token=")[2]] = talk.path.replace(
                "stream-token", "events"
            )

    hooks.requests.append(redirect)
    hooks.bodies.append(note)


@mutant("TW-ERR-015", "browser.a_problem_comes_in_band_where_the_url_says_so")
def a_fatal_problem_without_an_id(hooks):
    """A fatal problem in-band has no id, so that an EventSource comes back for ever."""
    hooks.frames.append(lambda talk, frame: frame.replace(b"id:0-1\n", b""))


@mutant("TW-JOB-033", "idempotency.the_key_of_a_purged_job_is_not_free")
def a_purge_frees_the_key(hooks):
    """The key of a job that was purged starts another one."""

    def other_key(talk):
        if talk.key in hooks.shared.get("free", ()):
            talk.set_header("idempotency-key", f"{talk.key}-again")
        if talk.method == "DELETE":
            hooks.shared.setdefault("free", set()).add(hooks.shared.get(talk.path.rpartition("/")[2]))

    def note(talk, status, body):
        if talk.key and status == 201:
            hooks.shared[json.loads(body)["id"]] = talk.key

    hooks.requests.append(other_key)
    hooks.bodies.append(note)


@mutant("TW-JOB-028", "idempotency.a_repeated_submit_finds_its_job_once_it_has_ended")
def a_key_ends_with_its_job(hooks):
    """A key is forgotten when its job ends."""

    def other_key(talk):
        if talk.key in hooks.shared.get("ended", ()):
            talk.set_header("idempotency-key", f"{talk.key}-again")

    def note(talk, frame):
        if b"event:done" in frame and talk.key:
            hooks.shared.setdefault("ended", set()).add(talk.key)
        return frame

    hooks.requests.append(other_key)
    hooks.frames.append(note)


@mutant("TW-JOB-030", "idempotency.a_repeated_submit_finds_its_job_once_it_has_ended")
def a_replayed_stream_has_only_the_end(hooks):
    """The stream that answers a repeated submit has `done` alone."""
    hooks.frames.append(
        lambda talk, frame: (
            b"" if talk.key and b'"compacted"' in frame and b"event:snapshot" in frame else frame
        )
    )


@mutant("TW-JOB-028", "idempotency.submits_at_once_start_one_job")
def keys_race(hooks):
    """Keys are looked up first and kept later: submits that come at once start several jobs."""

    async def race(talk):
        if key := talk.key:
            flying = hooks.shared.setdefault("flying", [])
            flying.append(key)
            await asyncio.sleep(0.05)
            if flying.count(key) > 1:
                talk.set_header("idempotency-key", f"{key}-{flying.count(key)}")
            flying.remove(key)

    hooks.requests.append(race)


@mutant("TW-ERR-006", "errors.who_has_to_wait_is_told_how_long", "idempotency.submits_at_once_start_one_job")
def in_flight_without_retry_after(hooks):
    """409 has no `Retry-After`."""

    def busy(talk):
        seen = hooks.shared.setdefault("keys", [])
        seen.append(talk.key)
        in_flight = talk.key and seen.count(talk.key) == 3
        return (
            problem(409, "idempotency_in_flight", retryable=True, retry_after_ms=1000) if in_flight else None
        )

    hooks.instead.append(busy)


@mutant("TW-ERR-007", "errors.who_has_to_wait_is_told_how_long", "jobs.a_submit_is_answered_with_the_job")
def two_waits_that_differ(hooks):
    """`retry_after_ms` is longer than `Retry-After` says."""

    def busy(talk):
        hooks.shared["n"] = hooks.shared.get("n", 0) + 1
        status, headers, body = problem(429, "rate_limited", retryable=True, retry_after_ms=5000)
        return (status, headers | {"retry-after": "1"}, body) if hooks.shared["n"] == 8 else None

    hooks.instead.append(busy)


@mutant("TW-JOB-025", "idempotency.a_key_has_visible_characters")
def any_key_is_taken(hooks):
    """Blanks in a key are taken away."""
    hooks.requests.append(
        lambda talk: " " in talk.key and talk.set_header("idempotency-key", talk.key.replace(" ", "-"))
    )


@mutant("TW-JOB-055", "cancels.a_cancel_after_the_end_changes_nothing")
def a_late_cancel_wins(hooks):
    """A cancel makes a job that has ended a cancelled one."""

    def cancelled(talk, status, body):
        late = talk.path.endswith("/cancel") and status == 200
        return (status, body.replace(b'"status":"succeeded"', b'"status":"cancelled"')) if late else None

    hooks.bodies.append(cancelled)


@mutant("TW-JOB-040", "jobs.a_read_can_be_followed_from_its_cursor")
def a_read_is_ahead_of_its_cursor(hooks):
    """State and cursor of a read are not of one moment."""

    def behind(talk, status, body):
        less = lambda found: b'"cursor":"1-%d"' % max(1, int(found[1]) - 1)  # noqa: E731
        return status, re.sub(rb'"cursor":"1-(\d+)"', less, body) if b'"done":{' not in body else body

    hooks.bodies.append(behind)


@mutant("TW-OVR-013", "jobs.links_lead_to_what_they_name", "jobs.a_submit_is_answered_with_the_job")
def links_of_the_inside(hooks):
    """Links name the host as it is called behind a proxy."""
    hooks.bodies.append(
        lambda talk, status, body: (
            status,
            body.replace(b'"events":"/v1', b'"events":"http://backend.internal:8080/v1'),
        )
    )


@mutant("TW-FRM-064", "ephemeral.places_are_counted_from_1", "jobs.a_submit_may_be_answered_by_the_stream")
def places_from_zero(hooks):
    """The first in the queue has place 0."""
    place = b'event:queue\ndata:{"position":0}\n\n'
    hooks.frames.append(lambda talk, frame: frame + place if b"event:hello" in frame else frame)


@mutant("TW-FRM-067", "ephemeral.progress_is_told_again_on_each_connection")
def progress_is_told_once(hooks):
    """Progress is told to those alone who are there when it is made."""

    def once(talk, frame):
        late = b"event:progress" in frame and hooks.shared.setdefault((talk.path, frame), id(talk)) != id(
            talk
        )
        return b"" if late else frame

    hooks.frames.append(once)


@mutant("TW-JOB-075", "snapshots_only.a_stream_without_diffs_has_snapshots_and_done")
def snapshots_come_twice(hooks):
    """A stream of snapshots sends the last one again before `done`."""

    def twice(talk, frame):
        if b"event:snapshot" in frame:
            talk.own["last"] = frame
        again = b"diffs=0" in talk.scope["query_string"] and b"event:done" in frame
        return talk.own.get("last", b"") + frame if again else frame

    hooks.frames.append(twice)


@mutant("TW-JOB-081", "snapshots_only.a_stream_without_diffs_judges_its_cursor")
def snapshots_whatever_the_cursor(hooks):
    """A stream of snapshots does not look at its cursor."""
    hooks.requests.append(
        lambda talk: b"diffs=0" in talk.scope["query_string"] and talk.set_header("last-event-id", None)
    )


@mutant(
    "TW-RES-026",
    "discovery.a_state_is_kept_as_long_as_discovery_says",
    "jobs.a_job_that_has_ended_tells_its_end",
)
def a_clock_that_is_an_hour_slow(hooks):
    """`expires_at` is taken from another clock than `ended_at`."""
    hooks.settings["state_ttl"] = 60.0
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, body.replace(b'"state_ttl_s":60,', b'"state_ttl_s":3600,'))
            if talk.path == "/v1"
            else None
        )
    )


# ---- more of batches -----------------------------------------------------------------------------------------------


@mutant("TW-BAT-002", "batch.an_endpoint_without_batches_takes_none")
def a_batch_is_not_declared(hooks):
    """An endpoint takes `inputs` without a word of it in its description."""

    def hide(talk, status, body):
        if talk.path != "/v1/endpoints/talk" or status != 200:
            return None
        found = json.loads(body)
        del found["capabilities"]["batch"]
        return status, json.dumps(found).encode()

    hooks.bodies.append(hide)


@mutant("TW-BAT-008", "batch.shared_members_complete_each_input")
def shared_overrules_an_input(hooks):
    """`shared` takes the place of members that an input has."""

    def overrule(talk):
        given = talk.json
        if talk.inputs and isinstance(given.get("shared"), dict):
            given["inputs"] = [each | given["shared"] for each in given["inputs"]]
            talk.body = json.dumps(given).encode()
            talk.set_header("content-length", str(len(talk.body)))

    hooks.requests.append(overrule)


@mutant("TW-BAT-009", "batch.shared_members_complete_each_input")
def a_fault_of_shared_is_laid_on_an_input(hooks):
    """A wrong member of `shared` is named as one of an input."""
    hooks.bodies.append(
        lambda talk, status, body: (status, body.replace(b'"pointer":"/shared', b'"pointer":"/inputs/1'))
    )


@mutant("TW-BAT-003", "batch.too_many_inputs_are_refused")
def too_many_inputs_are_left_out(hooks):
    """Inputs beyond the limit are left out without a word."""

    def cut(talk):
        if talk.is_submit and isinstance(talk.json, dict) and len(talk.json.get("inputs") or ()) > 32:
            talk.body = json.dumps({"inputs": talk.json["inputs"][:32]}).encode()
            talk.set_header("content-length", str(len(talk.body)))

    hooks.requests.append(cut)


@mutant("TW-JOB-082", "batch.a_cancel_of_one_item_leaves_the_others")
def an_index_twice_is_refused(hooks):
    """An index that stands twice in a cancel is refused."""

    def refuse(talk):
        items = (
            talk.json.get("items") if talk.path.endswith("/cancel") and isinstance(talk.json, dict) else None
        )
        twice = isinstance(items, list) and len(items) == 2 and items[0] == items[1]
        return problem(422, "invalid_input", pointer="/items/1") if twice else None

    hooks.instead.append(refuse)


@mutant(
    "TW-BAT-017", "batch.the_size_of_a_batch_counts_its_rows", "batch.the_company_of_an_item_changes_nothing"
)
def rows_from_one(hooks):
    """The rows of a batch are counted from 1."""
    more = lambda found: b'"row":%d' % (int(found[1]) + 1)  # noqa: E731
    hooks.bodies.append(lambda talk, status, body: (status, re.sub(rb'"row":(\d+)', more, body)))


@mutant("TW-JOB-047", "jobs.jobs_are_listed_newest_first")
def the_last_page_leads_to_the_first(hooks):
    """The list has a next page for ever."""

    def onward(talk, status, body):
        if talk.path != "/v1/jobs" or status != 200:
            return None
        return status, json.dumps(json.loads(body) | {"next": "/v1/jobs?limit=2"}).encode()

    hooks.bodies.append(onward)


@mutant("TW-ERR-006", "errors.who_has_to_wait_is_told_how_long", "idempotency.submits_at_once_start_one_job")
def retry_after_as_a_date(hooks):
    """`Retry-After` is a date."""

    def busy(talk):
        seen = hooks.shared.setdefault("keys", [])
        seen.append(talk.key)
        told = problem(409, "idempotency_in_flight", retryable=True, retry_after_ms=1000)
        told[1]["retry-after"] = "Wed, 21 Oct 2026 07:28:00 GMT"
        return told if talk.key and seen.count(talk.key) == 3 else None

    hooks.instead.append(busy)


@mutant("TW-JOB-073", "snapshots_only.a_stream_without_diffs_has_snapshots_and_done")
def snapshots_at_the_pace_of_the_job(hooks):
    """Snapshots come at every change, whatever interval was asked for."""
    hooks.settings["min_snapshot_interval"] = 0.001

    def forget(talk):
        talk.scope["query_string"] = re.sub(rb"&min_interval_ms=\d+", b"", talk.scope["query_string"])

    hooks.requests.append(forget)
