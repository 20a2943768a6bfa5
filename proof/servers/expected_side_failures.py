"""Expected failures of checks outside a fault's own area, with reasons, and faults that cannot be detected from outside.

For each faulty server, one check must notice the fault. The other checks of the same requirement, and those of the same
area, may also fail. All further checks must pass unless they are listed here.
"""

from fnmatch import fnmatch

from proof.servers.faults import FaultyServer
from tidewire_conformance import registry

EXPECTED_SIDE_FAILURES: dict[str, tuple[str, ...]] = {}
"""For each faulty server the reasons as one text, followed by patterns of check names."""


def _expect(why: str, checks: str, *names: str) -> None:
    for name in names:
        before, *known = EXPECTED_SIDE_FAILURES.get(name, ("",))
        EXPECTED_SIDE_FAILURES[name] = (f"{before}; {why}" if before else why, *known, *checks.split())


_expect(
    "a wrong event affects every check that reads the event, in applied diffs, in resumed streams or in reads of the job",
    "state.* text_checks_due.* resume.* cursors_in_urls.* snapshots.* generation.* deadlines.* slow_readers.* snapshots_only.* durable.* "
    "framing.streams_begin_with_hello framing.events_match_their_schemas framing.events_are_sent_without_delay framing.closing_event_is_last framing.log_ends_with_exactly_one_done "
    "queue_progress_ping_goaway.idle_stream_receives_pings queue_progress_ping_goaway.stream_ends_with_a_closing_event sizes.events_stay_within_size_limits "
    "jobs.stream_continues_from_a_read jobs.ended_job_includes_done "
    "batch.items_end_independently batch.row_is_less_than_batch_size browser.stream_token_opens_its_stream "
    "discovery.text_is_never_retracted_without_rollback discovery.value_is_set_once_without_streaming",
    "new_epoch_begins_with_a_diff", "job_with_failed_item_succeeds", "merged_diff_omits_an_event", "merged_diff_has_wrong_base",
    "new_attempt_keeps_old_values", "new_attempt_keeps_values_undeclared", "kept_value_loses_its_last_letter", "rollback_keeps_logprobs", "replicas_number_events_differently", "restart_loses_a_sent_event", "old_epoch_writer_continues",
    "new_epoch_after_done", "item_added_while_running", "columns_change_within_an_epoch", "snapshot_has_final_status", "logged_events_without_id",
    "ids_begin_at_2", "ids_compared_as_strings", "duplicate_ids", "ids_restart_after_reconnect", "every_second_id_skipped", "items_end_together",
    "events_truncated_at_64_kib", "lengths_in_utf16_units", "newline_in_an_id", "nul_in_an_id", "replay_has_other_text", "replay_reordered",
    "cursor_event_sent_again", "seqs_restart_in_each_epoch", "readers_share_events", "running_job_resume_skips_an_event", "event_after_cursor_skipped",
    "last_snapshot_repeated", "stable_text_truncated", "last_event_id_case_sensitive", "first_diff_after_resume_repeats_text", "after_overrides_last_event_id",
    "trimmed_cursor_gets_no_snapshot", "done_sent_twice", "wrong_crc", "wrong_digest", "digest_of_unsorted_members",
    "digest_sorts_by_code_points", "digest_uses_python_numbers",
)  # fmt: skip
_expect(
    "a read of the job and its stream have different states",
    "state.each_id_has_one_state state.diffs_apply_and_checks_hold cursors_in_urls.* snapshots.* generation.* deadlines.*",
    "cancelled_item_has_no_finish_reason", "cancelled_job_has_empty_usage", "usage_counts_only_last_item", "usage_counts_only_one_prompt", "all_rows_get_first_value",
    "result_differs_in_a_batch", "late_cancel_changes_status", "read_cursor_older_than_state", "cancelled_job_loses_its_value", "ended_job_cursor_before_done",
    "done_of_failed_job_without_error", "proto_member_dropped", "batch_rows_start_at_1", "usage_without_completion_tokens", "job_status_differs_from_state",
)  # fmt: skip
_expect(
    "a stream that sends nothing or does not end affects every check that reads a stream",
    "*",
    "slow_reader_blocks_others", "bom_before_every_event", "stream_media_type_is_text_plain", "event_held_until_the_next",
    "ping_after_done", "stream_buffered_until_done", "no_blank_line_after_the_last_event", "stream_without_hello", "stream_without_done",
    "connection_open_after_done", "resume_of_ended_job_hangs", "stream_compressed_if_accepted", "event_with_empty_data",
)  # fmt: skip
_expect(
    "error responses are wrong in all areas",
    "*",
    "errors_as_plain_text", "every_client_error_is_400", "status_422_without_pointer", "errors_always_inband", "stack_trace_leaked",
    "problem_status_differs_from_response", "errors_as_application_json",
)  # fmt: skip
_expect("every check of a submit looks at the status", "*", "submit_gets_200")
_expect(
    "all bodies are compared with their schemas",
    "jobs.response_bodies_fit_their_schemas",
    "too_many_ops_declared",
)
_expect(
    "all anonymous callers are one principal, so they share the limits of this principal",
    "limits_per_caller.anonymous_caller_at_the_*",
    "anonymous_job_not_found_by_its_id", "anonymous_job_cannot_be_purged",
)  # fmt: skip
_expect(
    "after a stream was refused, the server closes the first stream of each job",
    "slow_readers.slow_reader_does_not_delay_others resume.* durable.* framing.*",
    "oldest_stream_closed_at_the_limit",
)
_expect("every submit runs the wrong input", "*", "submit_body_ignored")
_expect(
    "invalid JSON in the stream affects every check that parses events",
    "json_and_times.* state.* framing.events_match_their_schemas",
    "invalid_utf8", "events_truncated_at_64_kib", "lone_cr_inside_json", "nan_in_an_event", "raw_newline_in_data",
)  # fmt: skip
_expect(
    "cursors are validated by the same code for streams of snapshots, in-band problems and stream tokens",
    "snapshots_only.diffs_0_validates_the_cursor browser.* state.item_status_transitions_are_valid "
    "cursors_in_urls.unknown_cursor_of_running_job_returns_rewound_snapshot",
    "invalid_cursor_ignored", "cursor_ignored", "unknown_cursor_gets_only_new_events",
)  # fmt: skip
_expect(
    "the ids decrease when the stream starts again from a snapshot",
    "resume.ids_are_consecutive",
    "snapshot_stream_ignores_cursor",
    "token_stream_ignores_last_event_id",
)
_expect(
    "an operation with an invalid path violates its schema",
    "framing.events_match_their_schemas",
    "path_names_not_escaped",
    "path_slash_escaped_as_01",
)
_expect(
    "new and replayed streams must begin with a snapshot",
    "resume.ids_are_consecutive jobs.submit_can_return_the_stream idempotency.* framing.streams_begin_with_hello "
    "queue_progress_ping_goaway.idle_stream_receives_pings cursors_in_urls.* snapshots.*",
    "replayed_stream_has_only_done", "first_event_is_a_diff",
)  # fmt: skip
_expect(
    "checks of expired, purged and reused jobs all expect 410",
    "idempotency.key_of_purged_job_returns_410 durable.expired_job_returns_410 purges.purged_job_returns_410",
    "expired_job_gets_404", "purged_job_gets_404",
)  # fmt: skip
_expect(
    "the server uses the same code for the cancels of items and for the cancels in other checks",
    "batch.item_cancel_does_not_affect_others ownership.other_principals_jobs_look_unknown errors.* "
    "limits_per_caller.stream_above_the_limit_returns_429 slow_readers.slow_reader_does_not_delay_others bodies.invalid_cancel_is_rejected "
    "generation.cancelled_generation_reports_reason_and_usage ownership.invalid_credentials_return_401 "
    "durable.any_replica_serves_any_job",
    "cancelled_job_continues", "cancel_is_not_idempotent",
)  # fmt: skip
_expect(
    "a job that exceeded its deadline is a failed job",
    "deadlines.deadline_fails_unfinished_items errors.errors_are_valid_problem_documents state.* framing.log_ends_with_exactly_one_done",
    "job_with_failed_item_succeeds", "failed_job_reported_as_succeeded", "deadline_fails_with_code_internal",
)  # fmt: skip
_expect(
    "times occur in all kinds of responses",
    "jobs.* browser.stream_token_opens_its_stream",
    "times_with_utc_offset",
)
_expect(
    "null violates the schema of a job",
    "jobs.submit_returns_the_job",
    "absent_member_written_as_null",
)
_expect(
    "an event of the wrong shape violates its schema",
    "framing.events_match_their_schemas",
    "queue_positions_start_at_0",
)
_expect(
    "in-band problems have a `retry` field, too",
    "browser.errors_inband_returns_problem_events limits_per_caller.stream_above_the_limit_returns_429",
    "retry_is_not_a_number",
    "retry_is_an_hour",
)
_expect(
    "the token opens the stream of another job",
    "framing.streams_begin_with_hello",
    "stream_token_opens_any_job",
)
_expect(
    "a purge cancels a running job, and cancelled jobs end without `done`",
    "cancels.cancel_ends_the_job queue_progress_ping_goaway.stream_ends_with_a_closing_event limits_per_caller.stream_above_the_limit_returns_429",
    "purged_stream_ends_without_done",
)
_expect(
    "checks use the declared capability",
    "browser.* errors.unknown_resources_return_404 purges.purged_job_returns_410",
    "missing_capability_declared",
)
_expect(
    "a check uses chunked coding to send a body that is too large",
    "discovery.oversized_body_returns_413",
    "chunked_request_refused",
)
_expect(
    "the third submit with the same key is refused in every check",
    "idempotency.*",
    "status_409_without_retry_after",
    "retry_after_is_a_date",
)
_expect(
    "every response is checked for fractional integers",
    "json_and_times.nulls_and_times_are_well_formed",
    "fractional_milliseconds",
)
_expect(
    "the server sends the error response with the media type of a job",
    "errors.errors_are_valid_problem_documents",
    "restart_loses_running_jobs",
)

_expect(
    "invalid JSON within an input counts as an invalid input",
    "bodies.invalid_json_is_rejected",
    "invalid_input_accepted",
)
_expect(
    "a job fails when its state grows too large",
    "sizes.oversized_state_fails_the_job",
    "done_of_failed_job_without_error",
)
_expect(
    "half a surrogate pair is invalid JSON",
    "json_and_times.all_json_is_valid",
    "append_splits_a_surrogate_pair",
)
_expect(
    "the check parses events by the rules for JSON",
    "state.text_lengths_count_code_points",
    "duplicate_member_in_an_event",
)
_expect("no job has `batch: true`", "batch.*", "samples_not_marked_as_batch")
_expect(
    "truncated text has a check",
    "state.* text_checks_due.* discovery.text_is_never_retracted_without_rollback",
    "rollback_keeps_logprobs",
)
_expect(
    "reordered operations change the text",
    "generation.stop_string_is_never_streamed",
    "ops_out_of_order",
)
_expect(
    "the head is in a later epoch than `done`",
    "framing.streams_begin_with_hello",
    "epoch_reused_after_restart",
)
_expect(
    "every pointer names an input",
    "refused_submits.invalid_submit_body_returns_422",
    "pointer_names_input_instead_of_shared",
)
_expect(
    "the items of the cancelled job have succeeded",
    "state.item_status_transitions_are_valid",
    "disconnect_cancels",
)
_expect(
    "streams of snapshots validate their cursor by the same code",
    "snapshots_only.diffs_0_validates_the_cursor",
    "cursor_of_done_gets_done_again",
)

_expect(
    "a wrong state after a restart affects every check that applies the job's events",
    "state.* resume.ids_are_consecutive",
    "new_attempt_restarts_succeeded_items", "old_epoch_cursor_compared_by_seq",
)  # fmt: skip
_expect(
    "the digest does not match a snapshot that lacks members",
    "state.diffs_apply_and_checks_hold state.each_id_has_one_state",
    "snapshots_without_stable", "snapshots_without_batch", "snapshots_without_error_detail", "snapshots_without_notes",
)  # fmt: skip
_expect(
    "a skipped event makes the applied state wrong",
    "state.diffs_apply_and_checks_hold",
    "event_after_oldest_snapshot_skipped",
)
_expect(
    "a stream that hangs stays open and counts towards the limit",
    "limits_per_caller.stream_above_the_limit_returns_429 resume.*",
    "cursor_past_head_waits",
)
_expect(
    "because of the fault, the server ignores a percent-encoded cursor and sends the whole log",
    "cursors_in_urls.after_works_like_last_event_id",
    "invalid_cursor_ignored",
)
_expect(
    "the check compares the response for another caller's job with the response for an unknown job",
    "ownership.other_principals_jobs_look_unknown",
    "delete_of_unknown_job_gets_204", "stream_token_for_unknown_job",
)  # fmt: skip
_expect(
    "the response keeps the media type of a problem",
    "errors.successful_responses_are_application_json",
    "expired_job_frees_its_key",
)

_expect(
    "the check compares the state after diffs with a snapshot",
    "snapshots.snapshots_match_the_history",
    "diff_sets_final_status", "failed_job_reported_as_succeeded", "queued_item_succeeds_directly", "stable_length_exceeds_text",
)  # fmt: skip
_expect(
    "the check also sends its `Accept` header to the URL of a stream",
    "framing.unacceptable_stream_request_returns_406",
    "accept_weights_ignored",
)
_expect(
    "unknown jobs and jobs of other callers must get the same response",
    "errors.unknown_resources_return_404 errors.errors_are_valid_problem_documents",
    "other_principals_job_gets_403",
)
_expect(
    "the job ends before the check receives `hello` and cancels it",
    "generation.cancelled_generation_reports_reason_and_usage",
    "hello_after_1500_ms",
)
_expect(
    "without `done` there is no usage",
    "generation.cancelled_generation_reports_reason_and_usage",
    "purged_stream_ends_without_done",
)
_expect(
    "the items of a batch are swapped",
    "deadlines.deadline_keeps_ended_items",
    "results_assigned_to_wrong_inputs",
)
_expect(
    "the server ignores the interval in every form, also in an invalid form",
    "parameters.invalid_min_interval_ms_returns_400",
    "snapshot_stream_ignores_min_interval_ms",
)
_expect(
    "the check repeats a submit with the same key after the job has expired",
    "durable.expired_job_returns_410",
    "idempotency_key_ignored",
)
_expect(
    "the check uses unknown members to test the limits of JSON",
    "bodies.json_limits_are_exact",
    "unknown_members_refused",
)
_expect(
    "cancelled jobs that continue still count towards the limit",
    "limits_per_caller.job_above_the_limit_returns_429",
    "cancelled_job_continues",
)
_expect(
    "the stream of snapshots in the check is a new stream",
    "snapshots_only.diffs_0_returns_snapshots_and_done",
    "first_event_is_a_diff",
)
_expect(
    "the check also purges a running job and requests a stream token at a replica",
    "durable.any_replica_serves_any_job",
    "purged_stream_ends_without_done", "missing_capability_declared",
)  # fmt: skip
_expect(
    "streams of snapshots begin with the same snapshot of the trimmed log",
    "snapshots_only.diffs_0_validates_the_cursor",
    "oldest_snapshot_has_reason_start",
)

UNDETECTABLE = {
    "`hello` is sent again later on a connection": "section 3.7 requires `hello` at the beginning, and does not mention a second `hello`",
    "`usage` decreases while a job runs": "no requirement says that the members of `usage` only grow",
    "The title of one code differs each time": "section 9.1 describes titles only in a table that no requirement makes binding",
    "A problem with a registered code has `type`": "only a table that no requirement makes binding says that `type` is absent",
    "`HEAD` is answered with 404, 405 or 200": "no requirement mentions `HEAD`",
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
    "`inputs` is accepted as an object": "the requirements on a submit mention an empty `inputs`, but no `inputs` of another type (TW-JOB-011, TW-JOB-083)",
    "`ended_at` is missing or earlier than `created_at`": "only a table says when these members are present, and no requirement states their order",
    "An invalid cursor for an expired job is answered with 400": "of two errors, the server may report either (TW-ERR-010)",
}
"""Faults that no requirement forbids or that no response shows, with the reason."""


def is_expected(server: FaultyServer, name: str) -> bool:
    """Whether a check other than the expected one may fail for a faulty server."""
    check = next(each for each in registry.checks() if each.name == name)
    same = (
        name.partition(".")[0] == server.check.partition(".")[0] or server.requirement in check.requirements
    )
    _, *patterns = EXPECTED_SIDE_FAILURES.get(server.name, ("",))
    return same or any(fnmatch(name, pattern) for pattern in patterns)
