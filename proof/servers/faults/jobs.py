"""Faulty servers with errors in the responses to requests that submit, read or list jobs."""

import itertools
import re
from types import SimpleNamespace

from proof.servers.expected_side_failures import READ_DIFFERS
from proof.servers.fault_helpers import change_json, drop_header, refuse, rewrite_body, rewrite_events
from proof.servers.faults import fault, faulty_server
from tidewire_server.jobs.admission import new_job

# fmt: off
fault("cancel_response_without_cursor", "TW-JOB-051", "jobs.response_bodies_fit_their_schemas",
      "The job in the response to a cancel request lacks `cursor`.",
      bodies=rewrite_body(rb'"cursor":"[^"]*",?', b"", at=".*/cancel"),
      also_run="cancels.cancel_of_ended_job_has_no_effect")

fault("submit_gets_200", "TW-JOB-018", "jobs.submit_returns_the_job",
      "A request to submit a job is answered with 200 instead of 201.",
      heads=lambda exchange, status, headers: 200 if exchange.is_submit and status == 201 else status,
      also_fails={"every check of a submit looks at the status": "*"})
fault("job_status_differs_from_state", "TW-JOB-038", "jobs.submit_returns_the_job",
      "The member `status` of a job resource differs from the status in the job's state.",
      bodies=rewrite_body(b'"status":"queued","batch"', b'"status":"running","batch"', at="/v1/endpoints/.*"),
      also_fails=READ_DIFFERS)

fault("submit_stream_without_content_location", "TW-JOB-019", "jobs.submit_can_return_the_stream",
      "A stream in response to a submitted job lacks `Content-Location`.",
      heads=drop_header("content-location"))

fault("errors_without_no_store", "TW-JOB-004", "jobs.job_responses_are_not_cacheable",
      "Error responses lack `Cache-Control: no-store`.",
      heads=drop_header("cache-control", range(400, 600)),
      also_run="errors.unknown_resources_return_404")

fault("links_name_internal_host", "TW-OVR-013", "jobs.links_resolve_to_their_resources",
      "Links contain the name of the internal host behind a proxy.",
      bodies=rewrite_body(b'"events":"/v1', b'"events":"http://backend.internal:8080/v1'),
      also_run="jobs.submit_returns_the_job")
fault("further_link_is_not_a_reference", "TW-OVR-013", "jobs.links_resolve_to_their_resources",
      "A job has a further link by name with spaces, which is not a URI reference.",
      bodies=rewrite_body(b'"links":{"self":"/v1/jobs/', b'"links":{"docs":"how to read a job","self":"/v1/jobs/'),
      also_run="jobs.submit_returns_the_job")
fault("cancel_link_broken", "TW-OVR-013", "jobs.links_resolve_to_their_resources",
      "The link `cancel` of a job refers to a URL that does not exist.",
      bodies=rewrite_body(rb'("cancel":"[^"]*)/cancel"', rb'\1/stop"'),
      also_run="jobs.submit_returns_the_job")
fault("events_link_names_the_job", "TW-OVR-013", "jobs.links_resolve_to_their_resources",
      "The link `events` of a job refers to the job resource.",
      bodies=rewrite_body(rb'("events":"[^"]*)/events"', rb'\1"', at="/v1/jobs.*"),
      also_run="jobs.submit_returns_the_job")
fault("jobs_link_broken", "TW-OVR-013", "jobs.links_resolve_to_their_resources",
      "The link `jobs` of an endpoint refers to a URL that does not exist.",
      bodies=rewrite_body(rb'("jobs":"[^"]*)/jobs"', rb'\1/run"', at="/v1/endpoints.*"))

fault("job_list_shows_all_as_queued", "TW-JOB-045", "jobs.jobs_are_listed_newest_first",
      "The job list shows every job as queued.",
      bodies=rewrite_body(rb'("endpoint":"[^"]*","status":)"succeeded"', rb'\1"queued"', at="/v1/jobs"))

fault("job_list_oldest_first", "TW-JOB-045", "jobs.jobs_are_listed_newest_first",
      "The job list begins with the oldest job.",
      bodies=change_json("/v1/jobs", lambda found: found | {"jobs": found["jobs"][::-1]}))
fault("job_list_omits_failed_jobs", "TW-JOB-045", "jobs.jobs_are_listed_newest_first",
      "The job list omits failed jobs.",
      bodies=change_json("/v1/jobs", lambda found:
          found | {"jobs": [each for each in found["jobs"] if each["status"] != "failed"]}))
fault("job_list_always_has_next_page", "TW-JOB-047", "jobs.jobs_are_listed_newest_first",
      "The job list always has a next page.",
      bodies=change_json("/v1/jobs", lambda found: found | {"next": "/v1/jobs?limit=2"}))

fault("submit_reads_the_cursor", "TW-JOB-018", "jobs.submit_ignores_a_cursor",
      "A submission with a malformed `Last-Event-ID` is refused.",
      instead=refuse(lambda exchange: exchange.is_submit and exchange.header("last-event-id") == "x", 400, "bad_cursor"))
fault("submit_reads_the_parameter_after", "TW-JOB-019", "jobs.submit_ignores_a_cursor",
      "A submission that asks for a stream gets a snapshot with the reason `rewound` if it has the parameter `after`.",
      instead=refuse(lambda exchange: exchange.is_submit and b"after=0-1" in exchange.query
          and "event-stream" in exchange.header("accept"), 410, "job_expired"))
fault("submit_stream_is_rewound", "TW-JOB-020", "jobs.submit_ignores_a_cursor",
      "The stream of a submission with a cursor begins with a snapshot whose reason is `rewound`.",
      frames=rewrite_events(b'"reason":"start"', b'"reason":"rewound"',
          where=lambda exchange: exchange.is_submit and exchange.header("last-event-id") == "9-9"),
      also_fails={"the rewound snapshot has no state before it": "state.* resume.*"})
fault("usage_missing_in_the_state_of_an_ended_job", "TW-FRM-052", "jobs.state_of_an_ended_job_has_its_end",
      "The state of an ended job lacks the usage of `done`.",
      bodies=rewrite_body(rb'("state":\{.*?"usage":)\{"tokens":2\}', rb"\1{}", at="/v1/jobs/.*"),
      also_fails={"the job and its stream have different states":
          "state.each_id_has_one_state"})
fault("error_missing_in_the_state_of_a_failed_job", "TW-FRM-052", "jobs.state_of_an_ended_job_has_its_end",
      "The state of a failed job lacks the error of `done`.",
      bodies=change_json("/v1/jobs/[^/]*", lambda found: found | {"state":
          {name: value for name, value in found.get("state", {}).items() if name != "error"}}),
      also_fails={"the job and its stream have different states":
          "state.each_id_has_one_state"})
fault("links_without_the_prefix", "TW-OVR-014", "jobs.links_resolve_to_their_resources",
      "Behind a proxy that adds a prefix to the paths, links lack the prefix.",
      prefix="/tide", also_run="jobs.submit_returns_the_job",
      also_fails={"checks follow the links": "*"})
# fmt: on


@faulty_server("TW-JOB-041", "jobs.ended_job_includes_done", hook="bodies", also_fails=READ_DIFFERS)
def ended_job_cursor_before_done(exchange, status, body):
    """The cursor of an ended job is the id of its last diff instead of the id of `done`."""
    less = lambda found: b'"cursor":"1-%d"' % (int(found[1]) - 1)  # noqa: E731
    return status, re.sub(rb'"cursor":"1-(\d+)"', less, body) if b'"done":{' in body else body


@faulty_server("TW-JOB-040", "jobs.stream_continues_from_a_read", hook="bodies", also_fails=READ_DIFFERS)
def read_cursor_older_than_state(exchange, status, body):
    """In the job resource, the cursor is older than the state."""
    less = lambda found: b'"cursor":"1-%d"' % max(1, int(found[1]) - 1)  # noqa: E731
    return status, re.sub(rb'"cursor":"1-(\d+)"', less, body) if b'"done":{' not in body else body


@faulty_server(
    "TW-JOB-023",
    "jobs.job_ids_are_unpredictable",
    also_run="refused_submits.accept_header_selects_json_or_stream bodies.unsupported_media_type_returns_415 bodies.chunked_bodies_are_accepted",
)
def consecutive_job_ids(hooks):
    """Job ids are consecutive numbers."""
    count = itertools.count(2**100)
    new_job.os = SimpleNamespace(urandom=lambda size: next(count).to_bytes(size))
