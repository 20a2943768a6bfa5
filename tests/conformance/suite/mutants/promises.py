"""Links, lists, deadlines and graces that promise something else than is kept."""

import json
import re

from conformance.suite.mutants import mutant

LINKS = "jobs.links_lead_to_what_they_name"
LISTED = "jobs.jobs_are_listed_newest_first"
KEPT = "discovery.a_state_is_kept_as_long_as_discovery_says"


def told_otherwise(hooks, pattern, by, *, below="/"):
    """Change what stands in bodies of answers."""
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, re.sub(pattern, by, body)) if talk.path.startswith(below) else None
        )
    )


def without_a_deadline(hooks, holds):
    """Submits of which something holds have no deadline."""

    def drop(talk):
        if talk.is_submit and isinstance(talk.json, dict) and holds(talk):
            talk.body = json.dumps({**talk.json, "deadline_ms": 600_000}).encode()

    hooks.requests.append(drop)


@mutant("TW-OVR-013", LINKS)
def the_link_to_cancel_leads_nowhere(hooks):
    """The link `cancel` of a job leads to what there is not."""
    told_otherwise(hooks, rb'("cancel":"[^"]*)/cancel"', rb'\1/stop"')


@mutant("TW-OVR-013", LINKS)
def the_link_to_events_leads_to_the_job(hooks):
    """The link `events` of a job is that of the job."""
    told_otherwise(hooks, rb'("events":"[^"]*)/events"', rb'\1"', below="/v1/jobs")


@mutant("TW-OVR-013", LINKS)
def the_link_to_jobs_leads_nowhere(hooks):
    """The link `jobs` of an endpoint leads to what there is not."""
    told_otherwise(hooks, rb'("jobs":"[^"]*)/jobs"', rb'\1/run"', below="/v1/endpoints")


@mutant("TW-JOB-045", LISTED)
def the_list_tells_of_the_beginning(hooks):
    """The list tells each job as it was submitted."""
    first = rb'("endpoint":"[^"]*","status":)"succeeded"'
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, re.sub(first, rb'\1"queued"', body)) if talk.path == "/v1/jobs" else None
        )
    )


@mutant("TW-RES-026", KEPT)
def done_tells_another_end_of_its_state(hooks):
    """`expires_at` of `done` is the time at which the job ended."""
    past = rb'("expires_at":")\d{4}'
    hooks.frames.append(lambda talk, frame: re.sub(past, rb"\g<1>2001", frame))
    hooks.bodies.append(
        lambda talk, status, body: (
            status,
            re.sub(rb'("done":\{.*?"expires_at":")\d{4}', rb"\g<1>2001", body),
        )
    )


@mutant("TW-JOB-069", "deadlines.a_deadline_leaves_what_has_ended")
def a_batch_has_no_deadline(hooks):
    """The deadline of a job of several inputs is ignored."""
    without_a_deadline(hooks, lambda talk: talk.inputs and "deadline_ms" in talk.json)


@mutant("TW-JOB-069", "deadlines.a_deadline_fails_what_has_not_ended")
def a_stream_has_no_deadline(hooks):
    """The deadline of a submit that is answered by a stream is ignored."""
    asks = lambda talk: "deadline_ms" in talk.json and "event-stream" in talk.header("accept")  # noqa: E731
    without_a_deadline(hooks, asks)


@mutant("TW-JOB-065", "deadlines.a_reader_may_be_away_for_a_minute")
def a_grace_of_nothing_is_taken(hooks):
    """A job whose reader goes away is cancelled at once, where the submit says so."""
    hooks.settings["min_grace"] = 0.0


@mutant("TW-FRM-063", "ephemeral.places_are_counted_from_1", "jobs.a_submit_may_be_answered_by_the_stream")
def a_job_that_runs_has_a_place(hooks):
    """`queue` is sent once more when the job has begun."""
    place = b'event:queue\ndata:{"position":1}\n\n'
    hooks.frames.append(lambda talk, frame: frame + place if b'"/status","running"' in frame else frame)


@mutant("TW-JOB-074", "snapshots_only.an_interval_below_that_of_discovery_is_raised")
def an_interval_of_nothing_is_taken(hooks):
    """A `min_interval_ms` below that of discovery is taken as it is."""
    hooks.settings["min_snapshot_interval"] = 0.005
    told_otherwise(hooks, rb'"min_interval_ms":\d+', b'"min_interval_ms":200')


@mutant("TW-FRM-066", "batch.progress_of_each_item_is_told")
def all_progress_is_that_of_the_first_item(hooks):
    """`progress` names the first item, whichever it is about."""
    hooks.frames.append(
        lambda talk, frame: (
            re.sub(rb'"item":\d+', b'"item":0', frame) if b"event:progress" in frame else frame
        )
    )


@mutant("TW-FRM-067", "batch.progress_of_each_item_is_told")
def progress_of_one_item_is_told_again(hooks):
    """A new connection is told the progress of one item alone."""
    hooks.frames.append(
        lambda talk, frame: b"" if b"event:progress" in frame and b'"item":1' in frame else frame
    )


@mutant("TW-JOB-005", "errors.json_is_called_json")
def a_cancel_is_answered_in_plain_text(hooks):
    """The answer to a cancel is called plain text."""
    hooks.heads.append(
        lambda talk, status, headers: (
            headers.update({"content-type": "text/plain"})
            if talk.path.endswith("/cancel") and status < 300
            else None
        )
    )


@mutant("TW-OVR-011", "notation.null_and_times_are_written_as_said", "jobs.a_submit_is_answered_with_the_job")
def months_from_zero(hooks):
    """Months are counted from 0."""
    told_otherwise(hooks, rb'("created_at":"\d+)-\d+-', rb"\1-00-")


@mutant("TW-JOB-019", "idempotency.a_repeated_submit_finds_its_job_once_it_has_ended")
def a_replay_does_not_tell_where_its_stream_is(hooks):
    """The stream that answers a repeated submit has no `Content-Location`."""
    hooks.heads.append(
        lambda talk, status, headers: (
            headers.pop("content-location", None) and None if "idempotency-replayed" in headers else None
        )
    )
