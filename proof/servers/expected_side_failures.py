"""Failures that a fault may cause outside its own area, with the reason, and faults that cannot be detected from outside.

Checks of the same requirement, and checks of the same area as the check that must notice, may always fail. Any other
check must pass unless it is listed here.
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
    "a wrong event affects every check that reads it: applied diffs, resumed streams, and reads of the job",
    "state.* text_checks_due.* resume.* cursors_in_urls.* snapshots.* generation.* deadlines.* slow_readers.* snapshots_only.* durable.* "
    "framing.streams_begin_with_hello framing.events_are_* framing.nothing_follows_the_end framing.a_job_ends_by_one_done "
    "queue_progress_ping_goaway.a_silent_stream_is_pinged queue_progress_ping_goaway.no_stream_is_closed_without_a_word sizes.events_are_no_longer_than_discovery_says "
    "jobs.a_read_can_be_followed_from_its_cursor jobs.a_job_that_has_ended_tells_its_end "
    "batch.items_end_one_by_one batch.the_size_of_a_batch_counts_its_rows browser.a_stream_token_opens_its_stream "
    "discovery.text_is_not_taken_back_where_it_cannot_be discovery.a_value_comes_once_where_nothing_streams",
    "a_diff_across_an_epoch", "a_failed_item_makes_a_job_that_succeeded", "a_hole_is_merged_over", "a_merged_diff_names_another_base",
    "a_new_attempt_keeps_old_values", "a_replica_numbers_by_itself", "a_restart_loses_a_sent_event", "a_zombie_writes_on",
    "an_epoch_after_done", "an_item_too_many", "columns_change_within_an_epoch", "done_folded_into_a_snapshot", "id_missing_on_some_logged_events",
    "ids_begin_at_two", "ids_are_compared_as_texts", "ids_repeat", "ids_restart_after_a_reconnect", "ids_skip", "items_end_together",
    "large_event_cut_at_64_kib", "lengths_in_utf16_units", "newline_in_an_id", "nul_in_an_id", "replay_renders_other_text", "replay_reordered",
    "replays_the_event_of_the_cursor", "seqs_begin_anew_in_each_epoch", "second_reader_steals_events", "skips_an_event_of_a_running_job", "skips_the_event_after_the_cursor",
    "snapshots_come_twice", "stable_is_broken", "the_header_in_one_case_alone", "the_overlap_is_sent_as_a_diff", "the_url_overrules_the_header",
    "trimmed_log_gives_the_rest", "two_terminal_events", "wrong_crc", "wrong_digest", "a_digest_of_members_as_they_stand",
    "a_digest_of_members_by_code_points", "a_digest_of_numbers_as_python_writes_them",
)  # fmt: skip
_expect(
    "a read of the job and its stream have different states",
    "state.an_id_has_one_state state.histories_fold cursors_in_urls.* snapshots.* generation.* deadlines.*",
    "a_cancel_leaves_no_reason", "a_cancel_costs_nothing", "usage_is_that_of_the_last_item", "one_prompt_is_counted", "rows_of_a_batch_are_mixed_up",
    "a_batch_changes_the_result", "a_late_cancel_wins", "a_read_is_ahead_of_its_cursor", "cancel_drops_the_value", "cursor_before_done",
    "done_of_a_failed_job_without_error", "prototypes_are_dropped", "rows_from_one", "usage_counts_nothing", "two_statuses_that_differ",
)  # fmt: skip
_expect(
    "a stream that sends nothing or does not end affects every check that reads a stream",
    "*",
    "a_slow_reader_blocks_the_others", "bom_before_every_event", "content_type_text_plain", "each_event_waits_for_the_next",
    "events_after_the_terminal", "held_back_until_done", "no_blank_line_after_the_last_event", "no_hello", "no_terminal_event",
    "open_after_the_terminal", "resume_after_the_end_hangs", "gzip_where_it_is_accepted", "an_empty_event_keeps_a_stream_awake",
)  # fmt: skip
_expect(
    "error responses are wrong in all areas",
    "*",
    "errors_in_plain_text", "everything_is_400", "no_pointer", "problems_are_always_in_band", "stack_trace_leaked",
    "the_body_names_another_status", "errors_as_json",
)  # fmt: skip
_expect("every check of a submit looks at the status", "*", "submit_answers_200")
_expect(
    "afterwards the first stream of each job is closed",
    "slow_readers.a_slow_reader_delays_nobody resume.* durable.* framing.*",
    "the_oldest_stream_makes_room",
)
_expect("every submit runs the wrong input", "*", "bodies_are_not_read")
_expect(
    "invalid JSON in the stream affects every check that parses events",
    "json_and_times.* state.* framing.events_are_those_of_the_table",
    "invalid_utf8", "large_event_cut_at_64_kib", "lone_cr_inside_json", "nan_in_an_event", "raw_newline_in_data",
)  # fmt: skip
_expect(
    "cursors are validated by the same code for streams of snapshots, in-band problems and stream tokens",
    "snapshots_only.a_stream_without_diffs_judges_its_cursor browser.* state.items_move_by_the_table "
    "cursors_in_urls.a_job_that_runs_does_not_wait_for_a_cursor_to_come_true",
    "any_cursor_is_taken", "cursor_ignored", "unknown_cursor_starts_from_now",
)  # fmt: skip
_expect(
    "the ids of a stream go down when it starts again from a snapshot",
    "resume.ids_go_up_without_a_gap",
    "snapshots_whatever_the_cursor",
    "a_token_begins_anew",
)
_expect(
    "an operation with an invalid path violates its schema",
    "framing.events_are_those_of_the_table",
    "names_are_not_escaped_in_paths",
    "a_slash_is_escaped_before_a_tilde",
)
_expect(
    "new and replayed streams must begin with a snapshot",
    "resume.ids_go_up_without_a_gap jobs.a_submit_may_be_answered_by_the_stream idempotency.* framing.streams_begin_with_hello "
    "queue_progress_ping_goaway.a_silent_stream_is_pinged cursors_in_urls.* snapshots.*",
    "a_replayed_stream_has_only_the_end", "first_event_is_a_diff",
)  # fmt: skip
_expect(
    "checks of expired, purged and reused jobs all expect 410",
    "idempotency.the_key_of_a_purged_job_is_not_free durable.an_expired_job_is_gone purges.a_purged_job_is_gone",
    "an_expired_job_is_unknown", "purge_answers_404",
)  # fmt: skip
_expect(
    "cancels of items and cancels in other checks use the same code",
    "batch.a_cancel_of_one_item_leaves_the_others ownership.a_job_of_another_principal_is_an_unknown_one errors.* "
    "limits_per_caller.a_stream_too_many_is_refused slow_readers.a_slow_reader_delays_nobody bodies.a_cancel_of_another_shape_cancels_nothing "
    "generation.a_generation_that_is_cancelled_says_so ownership.wrong_credentials_are_refused "
    "durable.any_replica_answers_for_any_job",
    "cancel_answers_and_runs_on", "cancel_is_not_idempotent",
)  # fmt: skip
_expect(
    "a job that exceeded its deadline is a failed job",
    "deadlines.a_deadline_fails_what_has_not_ended errors.errors_are_problems_of_the_registry state.* framing.a_job_ends_by_one_done",
    "a_failed_item_makes_a_job_that_succeeded", "a_failure_is_a_success_without_a_value", "deadlines_are_ignored",
)  # fmt: skip
_expect(
    "times occur in all kinds of responses",
    "jobs.* browser.a_stream_token_opens_its_stream",
    "times_with_an_offset",
)
_expect(
    "null violates the schema of a job",
    "jobs.a_submit_is_answered_with_the_job",
    "null_where_there_is_no_value",
)
_expect(
    "an event of the wrong shape violates its schema",
    "framing.events_are_those_of_the_table",
    "places_from_zero",
)
_expect(
    "in-band problems have a `retry` field, too",
    "browser.a_problem_comes_in_band_where_the_url_says_so limits_per_caller.a_stream_too_many_is_refused",
    "retry_abc",
    "retry_of_an_hour",
)
_expect(
    "the token opens the stream of another job",
    "framing.streams_begin_with_hello",
    "a_stream_token_opens_any_job",
)
_expect(
    "a purge cancels a running job, and cancelled jobs end without `done`",
    "cancels.a_cancel_ends_the_job queue_progress_ping_goaway.no_stream_is_closed_without_a_word limits_per_caller.a_stream_too_many_is_refused",
    "purge_without_done",
)
_expect(
    "checks use the declared capability",
    "browser.* errors.what_there_is_not_is_refused purges.a_purged_job_is_gone",
    "a_capability_is_made_up",
)
_expect(
    "a check sends a body that is too large with chunked coding",
    "discovery.a_body_that_is_too_large_is_refused",
    "a_body_needs_its_length",
)
_expect(
    "the third submit with the same key is refused in every check",
    "idempotency.*",
    "in_flight_without_retry_after",
    "retry_after_as_a_date",
)
_expect(
    "every response is checked for fractional integers",
    "json_and_times.null_and_times_are_written_as_said",
    "times_in_seconds_with_a_fraction",
)
_expect(
    "the error response has the media type of a job",
    "errors.errors_are_problems_of_the_registry",
    "a_restart_loses_what_runs",
)

_expect(
    "invalid JSON within an input counts as an invalid input",
    "bodies.a_body_that_breaks_json_is_refused",
    "invalid_input_is_taken",
)
_expect(
    "a job fails when its state grows too large",
    "sizes.a_state_that_grows_too_large_fails_the_job",
    "done_of_a_failed_job_without_error",
)
_expect(
    "half a surrogate pair is invalid JSON",
    "json_and_times.all_json_is_that_of_section_1_4",
    "append_splits_a_surrogate_pair",
)
_expect(
    "the check parses events by the rules for JSON",
    "state.texts_are_counted_in_code_points",
    "a_member_twice",
)
_expect("no job has `batch: true`", "batch.*", "samples_are_no_batch")
_expect(
    "truncated text has a check",
    "state.* text_checks_due.* discovery.text_is_not_taken_back_where_it_cannot_be",
    "a_rollback_leaves_its_logprobs",
)
_expect(
    "reordered operations change the text",
    "generation.a_stop_string_ends_the_text_before_it",
    "ops_out_of_order",
)
_expect(
    "the head is in a later epoch than `done`",
    "framing.streams_begin_with_hello",
    "an_epoch_is_used_twice",
)
_expect(
    "every pointer names an input",
    "refused_submits.a_submit_of_another_shape_is_refused",
    "a_fault_of_shared_is_laid_on_an_input",
)
_expect(
    "the items of the cancelled job have succeeded",
    "state.items_move_by_the_table",
    "disconnect_cancels",
)
_expect(
    "streams of snapshots validate their cursor by the same code",
    "snapshots_only.a_stream_without_diffs_judges_its_cursor",
    "the_cursor_of_done_gets_done_again",
)

_expect(
    "a wrong state after a restart affects every check that applies the job's events",
    "state.* resume.ids_go_up_without_a_gap",
    "a_new_attempt_runs_all_items", "only_seqs_are_compared",
)  # fmt: skip
_expect(
    "the digest does not match a snapshot that lacks members",
    "state.histories_fold state.an_id_has_one_state",
    "snapshots_take_stable_back", "snapshots_do_not_tell_of_the_batch", "snapshots_tell_another_error", "snapshots_have_no_notes",
)  # fmt: skip
_expect(
    "a skipped event makes the applied state wrong",
    "state.histories_fold",
    "the_edge_of_the_log_is_off_by_one",
)
_expect(
    "a hanging stream stays open and counts against the limit",
    "limits_per_caller.a_stream_too_many_is_refused resume.*",
    "a_cursor_past_the_head_waits",
)
_expect(
    "the fault ignores a percent-encoded cursor and sends the whole log",
    "cursors_in_urls.a_cursor_in_the_url_is_as_good_as_a_header",
    "any_cursor_is_taken",
)
_expect(
    "the check compares the response to another caller's job with that to an unknown job",
    "ownership.a_job_of_another_principal_is_an_unknown_one",
    "an_unknown_job_is_purged_all_the_same", "anything_gets_a_stream_token",
)  # fmt: skip
_expect(
    "the response keeps the media type of a problem", "errors.json_is_called_json", "an_expiry_frees_the_key"
)

_expect(
    "the check compares the state after diffs with a snapshot",
    "snapshots.a_snapshot_holds_all_that_the_diffs_gave",
    "a_diff_sets_the_end", "a_failure_is_a_success_without_a_value", "an_item_succeeds_from_the_queue", "more_is_stable_than_there_is",
)  # fmt: skip
_expect(
    "the check sends `Accept` to the URL of a stream, too",
    "framing.a_stream_that_is_not_accepted_is_refused",
    "accept_is_searched_for_a_word",
)
_expect(
    "unknown jobs and jobs of other callers must get the same response",
    "errors.what_there_is_not_is_refused errors.errors_are_problems_of_the_registry",
    "another_principal_is_told_forbidden",
)
_expect(
    "the job ends before the check receives `hello` and cancels it",
    "generation.a_generation_that_is_cancelled_says_so",
    "hello_is_late",
)
_expect(
    "without `done` there is no usage",
    "generation.a_generation_that_is_cancelled_says_so",
    "purge_without_done",
)
_expect(
    "the items of a batch are swapped",
    "deadlines.a_deadline_leaves_what_has_ended",
    "results_in_wrong_slots",
)
_expect(
    "every form of the ignored interval has no effect",
    "parameters.an_interval_is_a_number_without_a_sign",
    "snapshots_at_the_pace_of_the_job",
)
_expect(
    "the check repeats a submit with its key after the expiry",
    "durable.an_expired_job_is_gone",
    "the_same_key_runs_twice",
)
_expect(
    "the check uses unknown members to test the limits of JSON",
    "bodies.the_rules_of_json_hold_up_to_their_bounds",
    "unknown_members_are_refused",
)
_expect(
    "cancelled jobs that continue keep counting against the limit",
    "limits_per_caller.a_job_too_many_is_refused",
    "cancel_answers_and_runs_on",
)
_expect(
    "the stream of snapshots in the check is a new stream",
    "snapshots_only.a_stream_without_diffs_has_snapshots_and_done",
    "first_event_is_a_diff",
)
_expect(
    "the check also purges a running job and requests a stream token at a replica",
    "durable.any_replica_answers_for_any_job",
    "purge_without_done", "a_capability_is_made_up",
)  # fmt: skip
_expect(
    "streams of snapshots begin with the same snapshot of the trimmed log",
    "snapshots_only.a_stream_without_diffs_judges_its_cursor",
    "the_oldest_snapshot_is_called_the_start",
)

UNDETECTABLE = {
    "`hello` is sent again later on a connection": "section 3.7 demands it at the beginning and does not mention a second one",
    "`usage` decreases while a job runs": "no requirement demands that its members only grow",
    "The title of one code differs each time": "section 9.1 describes titles only in a table that no requirement makes binding",
    "A problem with a registered code has `type`": "only a table that no requirement makes binding says that `type` is absent",
    "`HEAD` is answered with 404, 405 or 200": "no requirement mentions it",
    "A prompt has fewer log-probabilities than tokens": "the requirement on equal lengths applies to generated tokens (TW-GEN-011)",
    "The job list contains a purged job": "no requirement excludes it (TW-JOB-062 applies to requests for the job)",
    "A stream stays open for seconds after `done`": "section 3.1 states no time limit; a stream that is never closed is detected",
    "A URL with a trailing slash is redirected or served": "a server may have more URLs than those of section 6.1",
    "`defaults` of an endpoint in discovery is wrong": "only a table says when `{}` is accepted",
    "An authentication scheme is recognized only in capitals": "the server decides how credentials are sent (TW-SEC-029)",
    "The description of an endpoint has another endpoint's name": "only a table defines the name",
    "Endpoints and vocabularies are served without credentials": "the server decides which credentials are needed (TW-SEC-003, TW-DSC-002)",
    "A replica is slow to send what another replica has written": "an event is due once it is known (TW-FRM-006), and no requirement says how soon a replica must know it",
    "`next` of the job list loses the `limit`": "the URL is opaque, and the next page may have another size (TW-JOB-048 applies to a limit in the request)",
    "`1.0` in a cancel is accepted as 1": "the requirement on integers applies to the writer (TW-OVR-010)",
    "`shared` is ignored for an input that is a number": "only an endpoint with numeric inputs would show it; other endpoints refuse such an input anyway",
    "A GET opens an epoch": "the write cannot be observed (TW-RES-013), and a recovery may have opened the epoch",
    "An example of an endpoint is slow or expensive": "no requirement limits the cost of an example",
    "`inputs` is accepted as an object": "the requirements on a submit mention an empty list, but no other type (TW-JOB-011, TW-JOB-083)",
    "`ended_at` is missing or earlier than `created_at`": "only a table says when they are present, and nothing states their order",
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
