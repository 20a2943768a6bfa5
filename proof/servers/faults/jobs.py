"""Faulty servers with errors in the responses to submits, reads and lists of jobs."""

import itertools
import json
import re
from types import SimpleNamespace

from proof.servers.fault_helpers import drop_header, rewrite_body
from proof.servers.faults import faulty_server
from tidewire_server.jobs import job_service


@faulty_server("TW-JOB-038", "jobs.a_submit_is_answered_with_the_job")
def two_statuses_that_differ(hooks):
    """`status` of a job differs from the status in its state."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            (status, body.replace(b'"status":"queued","batch"', b'"status":"running","batch"'))
            if exchange.is_submit
            else None
        )
    )


@faulty_server("TW-JOB-041", "jobs.a_job_that_has_ended_tells_its_end")
def cursor_before_done(hooks):
    """The cursor of an ended job is that of its last diff instead of `done`."""

    def earlier(exchange, status, body):
        less = lambda found: b'"cursor":"1-%d"' % (int(found[1]) - 1)  # noqa: E731
        return status, re.sub(rb'"cursor":"1-(\d+)"', less, body) if b'"done":{' in body else body

    hooks.bodies.append(earlier)


@faulty_server("TW-JOB-018", "jobs.a_submit_is_answered_with_the_job")
def submit_answers_200(hooks):
    """A submit is answered with 200 instead of 201."""
    hooks.heads.append(
        lambda exchange, status, headers: 200 if exchange.is_submit and status == 201 else status
    )


@faulty_server("TW-JOB-019", "jobs.a_submit_may_be_answered_by_the_stream")
def no_content_location(hooks):
    """The stream that answers a submit lacks `Content-Location`."""
    drop_header(hooks, "content-location")


@faulty_server("TW-JOB-004", "jobs.no_answer_about_jobs_may_be_stored", "errors.what_there_is_not_is_refused")
def errors_may_be_stored(hooks):
    """Error responses lack `Cache-Control: no-store`."""
    drop_header(hooks, "cache-control", range(400, 600))


@faulty_server("TW-JOB-045", "jobs.jobs_are_listed_newest_first")
def the_list_is_oldest_first(hooks):
    """The job list begins with the oldest job."""

    def reverse(exchange, status, body):
        if exchange.path == "/v1/jobs" and status == 200:
            found = json.loads(body)
            return status, json.dumps(found | {"jobs": found["jobs"][::-1]}).encode()
        return None

    hooks.bodies.append(reverse)


@faulty_server("TW-JOB-040", "jobs.a_read_can_be_followed_from_its_cursor")
def a_read_is_ahead_of_its_cursor(hooks):
    """The cursor of a job read is older than its state."""

    def behind(exchange, status, body):
        less = lambda found: b'"cursor":"1-%d"' % max(1, int(found[1]) - 1)  # noqa: E731
        return status, re.sub(rb'"cursor":"1-(\d+)"', less, body) if b'"done":{' not in body else body

    hooks.bodies.append(behind)


@faulty_server("TW-OVR-013", "jobs.links_lead_to_what_they_name", "jobs.a_submit_is_answered_with_the_job")
def links_of_the_inside(hooks):
    """Links name the internal host behind a proxy."""
    rewrite_body(hooks, b'"events":"/v1', b'"events":"http://backend.internal:8080/v1')


@faulty_server("TW-JOB-047", "jobs.jobs_are_listed_newest_first")
def the_last_page_leads_to_the_first(hooks):
    """The job list always has a next page."""

    def onward(exchange, status, body):
        if exchange.path != "/v1/jobs" or status != 200:
            return None
        return status, json.dumps(json.loads(body) | {"next": "/v1/jobs?limit=2"}).encode()

    hooks.bodies.append(onward)


@faulty_server(
    "TW-JOB-023",
    "jobs.ids_of_jobs_show_no_order",
    "refused_submits.accept_decides_the_form_of_the_answer",
    "bodies.a_body_of_another_media_type_is_refused",
    "bodies.both_framings_of_a_body_are_taken",
)
def ids_of_jobs_are_counted_up(hooks):
    """Job ids are consecutive numbers."""
    count = itertools.count(2**100)
    drawn = job_service.secrets
    job_service.secrets = SimpleNamespace(
        token_hex=lambda size: f"{next(count):0{2 * size}x}", token_bytes=drawn.token_bytes
    )


@faulty_server("TW-OVR-013", "jobs.links_lead_to_what_they_name")
def the_link_to_cancel_leads_nowhere(hooks):
    """The link `cancel` of a job names an unknown URL."""
    rewrite_body(hooks, rb'("cancel":"[^"]*)/cancel"', rb'\1/stop"')


@faulty_server("TW-OVR-013", "jobs.links_lead_to_what_they_name")
def the_link_to_events_leads_to_the_job(hooks):
    """The link `events` of a job names the job resource."""
    rewrite_body(hooks, rb'("events":"[^"]*)/events"', rb'\1"', at="/v1/jobs.*")


@faulty_server("TW-OVR-013", "jobs.links_lead_to_what_they_name")
def the_link_to_jobs_leads_nowhere(hooks):
    """The link `jobs` of an endpoint names an unknown URL."""
    rewrite_body(hooks, rb'("jobs":"[^"]*)/jobs"', rb'\1/run"', at="/v1/endpoints.*")


@faulty_server("TW-JOB-045", "jobs.jobs_are_listed_newest_first")
def the_list_tells_of_the_beginning(hooks):
    """The job list shows every job as queued."""
    first = rb'("endpoint":"[^"]*","status":)"succeeded"'
    rewrite_body(hooks, first, rb'\1"queued"', at="/v1/jobs")


@faulty_server("TW-JOB-045", "jobs.jobs_are_listed_newest_first")
def what_failed_is_not_listed(hooks):
    """The job list omits failed jobs."""

    def leave_out(exchange, status, body):
        if exchange.path != "/v1/jobs" or status != 200:
            return None
        found = json.loads(body)
        kept = [each for each in found["jobs"] if each["status"] != "failed"]
        return status, json.dumps(found | {"jobs": kept}).encode()

    hooks.bodies.append(leave_out)
