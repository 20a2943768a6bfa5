"""Expected failures of checks outside a fault's own area, with reasons, and faults that cannot be detected from outside.

For each faulty server, one check must notice the fault. The other checks of the same requirement, and those of the same
area, may also fail. All further checks must pass, unless the faulty server names them with a reason. The following reasons
apply to several faulty servers. Each reason maps to patterns of check names, separated by spaces.
"""

WRONG_EVENT = {
    "a wrong event affects every check that reads the event, in applied diffs, in resumed streams or in reads of the job": (
        "state.* text_checks_due.* resume.* cursors_in_urls.* snapshots.* generation.* deadlines.* "
        "slow_readers.* snapshots_only.* durable.* framing.streams_begin_with_hello "
        "framing.events_match_their_schemas framing.events_are_sent_without_delay "
        "framing.closing_event_is_last framing.log_ends_with_exactly_one_done "
        "queue_progress_ping_goaway.idle_stream_receives_pings "
        "queue_progress_ping_goaway.stream_ends_with_a_closing_event sizes.events_stay_within_size_limits "
        "jobs.stream_continues_from_a_read jobs.ended_job_includes_done batch.items_end_independently "
        "batch.row_is_less_than_batch_size browser.stream_token_opens_its_stream "
        "discovery.text_is_never_retracted_without_rollback discovery.value_is_set_once_without_streaming catch_up.*"
    )
}
READ_DIFFERS = {
    "a read of the job and its stream have different states": (
        "state.each_id_has_one_state state.diffs_apply_and_checks_hold cursors_in_urls.* snapshots.* "
        "generation.* deadlines.*"
    )
}
BROKEN_STREAM = {"a stream that sends nothing or does not end affects every check that reads a stream": "*"}
WRONG_ERRORS = {"error responses are wrong in all areas": "*"}
SHARED_LIMITS = {
    "all anonymous callers are one principal, so they share the limits of this principal": (
        "limits_per_caller.anonymous_caller_at_the_*"
    )
}
INVALID_JSON = {
    "invalid JSON in the stream affects every check that parses events": (
        "json_and_times.* state.* framing.events_match_their_schemas"
    )
}
CURSOR_VALIDATION = {
    "cursors are validated by the same code for streams of snapshots, in-band problems and stream tokens": (
        "snapshots_only.diffs_0_validates_the_cursor browser.* state.item_status_transitions_are_valid "
        "cursors_in_urls.unknown_cursor_of_running_job_returns_rewound_snapshot"
    )
}
IDS_DECREASE = {"the ids decrease when the stream starts again from a snapshot": "resume.ids_are_consecutive"}
INVALID_PATH = {"an operation with an invalid path violates its schema": "framing.events_match_their_schemas"}
NEW_STREAM = {
    "new and replayed streams must begin with a snapshot": (
        "resume.ids_are_consecutive jobs.submit_can_return_the_stream idempotency.* "
        "framing.streams_begin_with_hello queue_progress_ping_goaway.idle_stream_receives_pings "
        "cursors_in_urls.* snapshots.*"
    )
}
GONE = {
    "checks of expired, purged and reused jobs all expect 410": (
        "idempotency.key_of_purged_job_returns_410 durable.expired_job_returns_410 "
        "purges.purged_job_returns_410 purges.purged_jobs_of_other_principals_look_unknown"
    )
}
SAME_CANCELS = {
    "the server uses the same code for the cancels of items and for the cancels in other checks": (
        "batch.item_cancel_does_not_affect_others ownership.other_principals_jobs_look_unknown errors.* "
        "limits_per_caller.stream_above_the_limit_returns_429 "
        "slow_readers.slow_reader_does_not_delay_others bodies.invalid_cancel_is_rejected "
        "generation.cancelled_generation_reports_reason_and_usage "
        "ownership.invalid_credentials_return_401 durable.any_replica_serves_any_job"
    )
}
FAILED_JOB = {
    "a job that exceeded its deadline is a failed job": (
        "deadlines.deadline_fails_unfinished_items errors.errors_are_valid_problem_documents state.* "
        "framing.log_ends_with_exactly_one_done"
    )
}
DONE_WITHOUT_ERROR = {
    "a schema requires the error of a failed job": (
        "framing.events_match_their_schemas jobs.response_bodies_fit_their_schemas "
        "jobs.state_of_an_ended_job_has_its_end"
    )
}
UNKNOWN_WITH_ERRORS = {
    "requests for unknown resources are sent with further errors, too": (
        "requests_with_several_errors.request_with_several_errors_reports_one"
    )
}
INBAND_RETRY = {
    "in-band problems have a `retry` field, too": (
        "browser.errors_inband_returns_problem_events limits_per_caller.stream_above_the_limit_returns_429"
    )
}
THIRD_SUBMIT = {"the third submit with the same key is refused in every check": "idempotency.*"}
WRONG_NEW_ATTEMPT = {
    "a wrong state after a restart affects every check that applies the job's events": (
        "state.* resume.ids_are_consecutive"
    )
}
WRONG_SNAPSHOT = {
    "the digest does not match a snapshot that lacks members": (
        "state.diffs_apply_and_checks_hold state.each_id_has_one_state"
    )
}
UNKNOWN_JOB = {
    "the check compares the response for another caller's job with the response for an unknown job": (
        "ownership.other_principals_jobs_look_unknown purges.purged_jobs_of_other_principals_look_unknown"
    )
}
WRONG_HISTORY = {
    "the check compares the state after diffs with a snapshot": "snapshots.snapshots_match_the_history"
}
REPLICA_FEATURES = {
    "the check also purges a running job and requests a stream token at a replica": (
        "durable.any_replica_serves_any_job"
    )
}

UNDETECTABLE = {
    "`hello` is sent again later on a connection": "section 3.7 requires `hello` at the beginning, and does not mention a second `hello`",
    "`usage` decreases while a job runs": "no requirement says that the members of `usage` only grow",
    "The title of one code differs each time": "section 9.1 describes titles only in a table that no requirement makes binding",
    "A problem with a registered code has `type`": "only a table that no requirement makes binding says that `type` is absent",
    "A prompt has fewer log-probabilities than tokens": "the requirement on equal lengths applies to generated tokens (TW-GEN-011)",
    "The job list contains a purged job": "no requirement excludes purged jobs from the list (TW-JOB-062 applies to requests for the job)",
    "A stream stays open for seconds after `done`": "section 3.1 states no time limit; a stream that is never closed is detected",
    "A URL with a trailing slash is redirected or served": "a server may have more URLs than those of section 6.1",
    "`defaults` of an endpoint in discovery is wrong": "only a table says when `{}` is accepted",
    "An authentication scheme is recognized only in capitals": "the server decides how credentials are sent (TW-SEC-029)",
    "The description of an endpoint has another endpoint's name": "only a table defines the name",
    "Endpoints and vocabularies are served without credentials": "the server decides which credentials are needed (TW-SEC-003, TW-DSC-002)",
    "A replica is slow to send what another replica has written": "an event is due when the replica knows the event (TW-FRM-006), and no requirement says how soon this must be",
    "`next` of the job list loses the `limit`": "`next` is an opaque URL, and the next page may have another size (TW-JOB-048 applies to a limit in the request)",
    "`1.0` in a cancel is accepted as 1": "the requirement on integers applies to the writer (TW-OVR-010)",
    "`shared` is ignored for an input that is a number": "only an endpoint with numeric inputs would show the fault, because all other endpoints refuse such an input",
    "A GET opens an epoch": "a write to the log cannot be observed (TW-RES-013), and a recovery may have opened the epoch",
    "An example of an endpoint is slow or expensive": "no requirement limits the cost of an example",
    "`inputs` is accepted as an object": "the requirements on a submit mention an empty `inputs`, but no `inputs` of another type (TW-JOB-087)",
    "`ended_at` is missing or earlier than `created_at`": "only a table says when these members are present, and no requirement states their order",
    "An invalid cursor for an expired job is answered with 400": "of two errors, the server may report either (TW-ERR-010)",
}
"""Faults that no requirement forbids or that no response shows, with the reason."""
