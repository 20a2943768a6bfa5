"""Faulty servers with errors in the responses to requests that submit, read or list jobs."""

import itertools
import json
import re
from types import SimpleNamespace

from proof.servers.fault_helpers import drop_header, rewrite_body
from proof.servers.faults import faulty_server
from tidewire_server.jobs import job_service


@faulty_server("TW-JOB-038", "jobs.submit_returns_the_job")
def job_status_differs_from_state(hooks):
    """The member `status` of a job resource differs from the status in the job's state."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            (status, body.replace(b'"status":"queued","batch"', b'"status":"running","batch"'))
            if exchange.is_submit
            else None
        )
    )


@faulty_server(
    "TW-JOB-051", "jobs.response_bodies_fit_their_schemas", "cancels.cancel_of_ended_job_has_no_effect"
)
def cancel_response_without_cursor(hooks):
    """The job in the response to a cancel request lacks `cursor`."""
    rewrite_body(hooks, rb'"cursor":"[^"]*",?', b"", at=".*/cancel")


@faulty_server("TW-JOB-041", "jobs.ended_job_includes_done")
def ended_job_cursor_before_done(hooks):
    """The cursor of an ended job is the id of its last diff instead of the id of `done`."""

    def earlier(exchange, status, body):
        less = lambda found: b'"cursor":"1-%d"' % (int(found[1]) - 1)  # noqa: E731
        return status, re.sub(rb'"cursor":"1-(\d+)"', less, body) if b'"done":{' in body else body

    hooks.bodies.append(earlier)


@faulty_server("TW-JOB-018", "jobs.submit_returns_the_job")
def submit_gets_200(hooks):
    """A request to submit a job is answered with 200 instead of 201."""
    hooks.heads.append(
        lambda exchange, status, headers: 200 if exchange.is_submit and status == 201 else status
    )


@faulty_server("TW-JOB-019", "jobs.submit_can_return_the_stream")
def submit_stream_without_content_location(hooks):
    """A stream in response to a submitted job lacks `Content-Location`."""
    drop_header(hooks, "content-location")


@faulty_server("TW-JOB-004", "jobs.job_responses_are_not_cacheable", "errors.unknown_resources_return_404")
def errors_without_no_store(hooks):
    """Error responses lack `Cache-Control: no-store`."""
    drop_header(hooks, "cache-control", range(400, 600))


@faulty_server("TW-JOB-045", "jobs.jobs_are_listed_newest_first")
def job_list_oldest_first(hooks):
    """The job list begins with the oldest job."""

    def reverse(exchange, status, body):
        if exchange.path == "/v1/jobs" and status == 200:
            found = json.loads(body)
            return status, json.dumps(found | {"jobs": found["jobs"][::-1]}).encode()
        return None

    hooks.bodies.append(reverse)


@faulty_server("TW-JOB-040", "jobs.stream_continues_from_a_read")
def read_cursor_older_than_state(hooks):
    """In the job resource, the cursor is older than the state."""

    def behind(exchange, status, body):
        less = lambda found: b'"cursor":"1-%d"' % max(1, int(found[1]) - 1)  # noqa: E731
        return status, re.sub(rb'"cursor":"1-(\d+)"', less, body) if b'"done":{' not in body else body

    hooks.bodies.append(behind)


@faulty_server("TW-OVR-013", "jobs.links_resolve_to_their_resources", "jobs.submit_returns_the_job")
def links_name_internal_host(hooks):
    """Links contain the name of the internal host behind a proxy."""
    rewrite_body(hooks, b'"events":"/v1', b'"events":"http://backend.internal:8080/v1')


@faulty_server("TW-JOB-047", "jobs.jobs_are_listed_newest_first")
def job_list_always_has_next_page(hooks):
    """The job list always has a next page."""

    def onward(exchange, status, body):
        if exchange.path != "/v1/jobs" or status != 200:
            return None
        return status, json.dumps(json.loads(body) | {"next": "/v1/jobs?limit=2"}).encode()

    hooks.bodies.append(onward)


@faulty_server(
    "TW-JOB-023",
    "jobs.job_ids_are_unpredictable",
    "refused_submits.accept_header_selects_json_or_stream",
    "bodies.unsupported_media_type_returns_415",
    "bodies.chunked_bodies_are_accepted",
)
def consecutive_job_ids(hooks):
    """Job ids are consecutive numbers."""
    count = itertools.count(2**100)
    job_service.os = SimpleNamespace(urandom=lambda size: next(count).to_bytes(size))


@faulty_server("TW-OVR-013", "jobs.links_resolve_to_their_resources")
def cancel_link_broken(hooks):
    """The link `cancel` of a job refers to a URL that does not exist."""
    rewrite_body(hooks, rb'("cancel":"[^"]*)/cancel"', rb'\1/stop"')


@faulty_server("TW-OVR-013", "jobs.links_resolve_to_their_resources")
def events_link_names_the_job(hooks):
    """The link `events` of a job refers to the job resource."""
    rewrite_body(hooks, rb'("events":"[^"]*)/events"', rb'\1"', at="/v1/jobs.*")


@faulty_server("TW-OVR-013", "jobs.links_resolve_to_their_resources")
def jobs_link_broken(hooks):
    """The link `jobs` of an endpoint refers to a URL that does not exist."""
    rewrite_body(hooks, rb'("jobs":"[^"]*)/jobs"', rb'\1/run"', at="/v1/endpoints.*")


@faulty_server("TW-JOB-045", "jobs.jobs_are_listed_newest_first")
def job_list_shows_all_as_queued(hooks):
    """The job list shows every job as queued."""
    first = rb'("endpoint":"[^"]*","status":)"succeeded"'
    rewrite_body(hooks, first, rb'\1"queued"', at="/v1/jobs")


@faulty_server("TW-JOB-045", "jobs.jobs_are_listed_newest_first")
def job_list_omits_failed_jobs(hooks):
    """The job list omits failed jobs."""

    def leave_out(exchange, status, body):
        if exchange.path != "/v1/jobs" or status != 200:
            return None
        found = json.loads(body)
        kept = [each for each in found["jobs"] if each["status"] != "failed"]
        return status, json.dumps(found | {"jobs": kept}).encode()

    hooks.bodies.append(leave_out)
