"""Failures that a fault may cause outside its own area, with the reason; and faults that no suite can see from outside.

A check that judges the same requirement, or is of the area of the check that has to notice, may find a fault as well. Any
other check must pass unless it is listed here.
"""

from fnmatch import fnmatch

from proof.servers.faults import FaultyServer
from tidewire_conformance import registry

EXPECTED_SIDE_FAILURES: dict[str, tuple[str, ...]] = {}
"""Name of the faulty server → the reasons in one text, and the checks by their names, with wildcards."""


def _expect(why: str, checks: str, *names: str) -> None:
    for name in names:
        before, *known = EXPECTED_SIDE_FAILURES.get(name, ("",))
        EXPECTED_SIDE_FAILURES[name] = (f"{before}; {why}" if before else why, *known, *checks.split())


_expect(
    "a wrong event shows wherever it is read: in each fold, in each resume, and in the state that a read tells",
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
    "a read of a job tells another state than its stream does",
    "state.an_id_has_one_state state.histories_fold cursors_in_urls.* snapshots.* generation.* deadlines.*",
    "a_cancel_leaves_no_reason", "a_cancel_costs_nothing", "usage_is_that_of_the_last_item", "one_prompt_is_counted", "rows_of_a_batch_are_mixed_up",
    "a_batch_changes_the_result", "a_late_cancel_wins", "a_read_is_ahead_of_its_cursor", "cancel_drops_the_value", "cursor_before_done",
    "done_of_a_failed_job_without_error", "prototypes_are_dropped", "rows_from_one", "usage_counts_nothing", "two_statuses_that_differ",
)  # fmt: skip
_expect(
    "a stream that gives nothing, or does not end where it should, leaves each check that reads one without its end",
    "*",
    "a_slow_reader_blocks_the_others", "bom_before_every_event", "content_type_text_plain", "each_event_waits_for_the_next",
    "events_after_the_terminal", "held_back_until_done", "no_blank_line_after_the_last_event", "no_hello", "no_terminal_event",
    "open_after_the_terminal", "resume_after_the_end_hangs", "gzip_where_it_is_accepted", "an_empty_event_keeps_a_stream_awake",
)  # fmt: skip
_expect(
    "refusals of all areas are another than they should be",
    "*",
    "errors_in_plain_text", "everything_is_400", "no_pointer", "problems_are_always_in_band", "stack_trace_leaked",
    "the_body_names_another_status", "errors_as_json",
)  # fmt: skip
_expect("every submit is judged by its status", "*", "submit_answers_200")
_expect(
    "from then on each stream that is the first of its job is closed",
    "slow_readers.a_slow_reader_delays_nobody resume.* durable.* framing.*",
    "the_oldest_stream_makes_room",
)
_expect("no submit does as it is told", "*", "bodies_are_not_read")
_expect(
    "what is no JSON by the text is none in any event",
    "json_and_times.* state.* framing.events_are_those_of_the_table",
    "invalid_utf8", "large_event_cut_at_64_kib", "lone_cr_inside_json", "nan_in_an_event", "raw_newline_in_data",
)  # fmt: skip
_expect(
    "cursors are judged alike with and without diffs, in-band, and by a token",
    "snapshots_only.a_stream_without_diffs_judges_its_cursor browser.* state.items_move_by_the_table "
    "cursors_in_urls.a_job_that_runs_does_not_wait_for_a_cursor_to_come_true",
    "any_cursor_is_taken", "cursor_ignored", "unknown_cursor_starts_from_now",
)  # fmt: skip
_expect(
    "the snapshots of a stream go down where it begins anew",
    "resume.ids_go_up_without_a_gap",
    "snapshots_whatever_the_cursor",
    "a_token_begins_anew",
)
_expect(
    "an op whose path is none does not fit its schema",
    "framing.events_are_those_of_the_table",
    "names_are_not_escaped_in_paths",
    "a_slash_is_escaped_before_a_tilde",
)
_expect(
    "a fresh stream, and one that is replayed, begins with a snapshot",
    "resume.ids_go_up_without_a_gap jobs.a_submit_may_be_answered_by_the_stream idempotency.* framing.streams_begin_with_hello "
    "queue_progress_ping_goaway.a_silent_stream_is_pinged cursors_in_urls.* snapshots.*",
    "a_replayed_stream_has_only_the_end", "first_event_is_a_diff",
)  # fmt: skip
_expect(
    "all that is gone is answered with 410",
    "idempotency.the_key_of_a_purged_job_is_not_free durable.an_expired_job_is_gone purges.a_purged_job_is_gone",
    "an_expired_job_is_unknown", "purge_answers_404",
)  # fmt: skip
_expect(
    "a cancel of an item is a cancel",
    "batch.a_cancel_of_one_item_leaves_the_others ownership.a_job_of_another_principal_is_an_unknown_one errors.* "
    "limits_per_caller.a_stream_too_many_is_refused slow_readers.a_slow_reader_delays_nobody bodies.a_cancel_of_another_shape_cancels_nothing "
    "generation.a_generation_that_is_cancelled_says_so ownership.wrong_credentials_are_refused "
    "durable.any_replica_answers_for_any_job",
    "cancel_answers_and_runs_on", "cancel_is_not_idempotent",
)  # fmt: skip
_expect(
    "a job that failed at its deadline is one that failed",
    "deadlines.a_deadline_fails_what_has_not_ended errors.errors_are_problems_of_the_registry state.* framing.a_job_ends_by_one_done",
    "a_failed_item_makes_a_job_that_succeeded", "a_failure_is_a_success_without_a_value", "deadlines_are_ignored",
)  # fmt: skip
_expect(
    "times stand in answers of all kinds",
    "jobs.* browser.a_stream_token_opens_its_stream",
    "times_with_an_offset",
)
_expect(
    "null does not fit the schema of a job",
    "jobs.a_submit_is_answered_with_the_job",
    "null_where_there_is_no_value",
)
_expect(
    "an event of another shape does not fit its schema",
    "framing.events_are_those_of_the_table",
    "places_from_zero",
)
_expect(
    "problems in-band have a `retry` as well",
    "browser.a_problem_comes_in_band_where_the_url_says_so limits_per_caller.a_stream_too_many_is_refused",
    "retry_abc",
    "retry_of_an_hour",
)
_expect(
    "the token leads to the stream of another job",
    "framing.streams_begin_with_hello",
    "a_stream_token_opens_any_job",
)
_expect(
    "a purge cancels what runs, and whoever reads what is cancelled is left without a word",
    "cancels.a_cancel_ends_the_job queue_progress_ping_goaway.no_stream_is_closed_without_a_word limits_per_caller.a_stream_too_many_is_refused",
    "purge_without_done",
)
_expect(
    "what is claimed and not there is asked for",
    "browser.* errors.what_there_is_not_is_refused purges.a_purged_job_is_gone",
    "a_capability_is_made_up",
)
_expect(
    "a body that is too large comes in chunks as well",
    "discovery.a_body_that_is_too_large_is_refused",
    "a_body_needs_its_length",
)
_expect(
    "the third submit with a key is refused, whatever the check",
    "idempotency.*",
    "in_flight_without_retry_after",
    "retry_after_as_a_date",
)
_expect(
    "integers are judged in every answer",
    "json_and_times.null_and_times_are_written_as_said",
    "times_in_seconds_with_a_fraction",
)
_expect(
    "the refusal keeps the media type of the job",
    "errors.errors_are_problems_of_the_registry",
    "a_restart_loses_what_runs",
)

_expect(
    "what JSON forbids within an input is a fault of the input",
    "bodies.a_body_that_breaks_json_is_refused",
    "invalid_input_is_taken",
)
_expect(
    "a job whose state has grown too large has failed",
    "sizes.a_state_that_grows_too_large_fails_the_job",
    "done_of_a_failed_job_without_error",
)
_expect(
    "half a character is no JSON",
    "json_and_times.all_json_is_that_of_section_1_4",
    "append_splits_a_surrogate_pair",
)
_expect("a text is read by the rules of JSON", "state.texts_are_counted_in_code_points", "a_member_twice")
_expect("no job says that it is a batch", "batch.*", "samples_are_no_batch")
_expect(
    "a text that is truncated is proved",
    "state.* text_checks_due.* discovery.text_is_not_taken_back_where_it_cannot_be",
    "a_rollback_leaves_its_logprobs",
)
_expect(
    "texts are put together in another order as well",
    "generation.a_stop_string_ends_the_text_before_it",
    "ops_out_of_order",
)
_expect(
    "the head is of a later epoch than the end",
    "framing.streams_begin_with_hello",
    "an_epoch_is_used_twice",
)
_expect(
    "each pointer into a body names the input",
    "refused_submits.a_submit_of_another_shape_is_refused",
    "a_fault_of_shared_is_laid_on_an_input",
)
_expect(
    "the items of a job that is called cancelled have succeeded",
    "state.items_move_by_the_table",
    "disconnect_cancels",
)
_expect(
    "a stream without diffs judges its cursor alike",
    "snapshots_only.a_stream_without_diffs_judges_its_cursor",
    "the_cursor_of_done_gets_done_again",
)

_expect(
    "what a restart brings back wrongly shows in each fold of that job",
    "state.* resume.ids_go_up_without_a_gap",
    "a_new_attempt_runs_all_items", "only_seqs_are_compared",
)  # fmt: skip
_expect(
    "the digest is that of items of which the snapshot has lost something",
    "state.histories_fold state.an_id_has_one_state",
    "snapshots_take_stable_back", "snapshots_do_not_tell_of_the_batch", "snapshots_tell_another_error", "snapshots_have_no_notes",
)  # fmt: skip
_expect(
    "what is left out of a resume shows in its fold",
    "state.histories_fold",
    "the_edge_of_the_log_is_off_by_one",
)
_expect(
    "a stream that hangs stays open, and counts",
    "limits_per_caller.a_stream_too_many_is_refused resume.*",
    "a_cursor_past_the_head_waits",
)
_expect(
    "a cursor that is decoded late is none, and so all that is asked for",
    "cursors_in_urls.a_cursor_in_the_url_is_as_good_as_a_header",
    "any_cursor_is_taken",
)
_expect(
    "another's job is held against one that never was",
    "ownership.a_job_of_another_principal_is_an_unknown_one",
    "an_unknown_job_is_purged_all_the_same", "anything_gets_a_stream_token",
)  # fmt: skip
_expect("the answer is still called a problem", "errors.json_is_called_json", "an_expiry_frees_the_key")

_expect(
    "the state that diffs lead to is held against that of a snapshot",
    "snapshots.a_snapshot_holds_all_that_the_diffs_gave",
    "a_diff_sets_the_end", "a_failure_is_a_success_without_a_value", "an_item_succeeds_from_the_queue", "more_is_stable_than_there_is",
)  # fmt: skip
_expect(
    "the URL of a stream has an `Accept` as well",
    "framing.a_stream_that_is_not_accepted_is_refused",
    "accept_is_searched_for_a_word",
)
_expect(
    "what never was is refused as what is another's",
    "errors.what_there_is_not_is_refused errors.errors_are_problems_of_the_registry",
    "another_principal_is_told_forbidden",
)
_expect(
    "what a check cancels once it has been told of it has ended by then",
    "generation.a_generation_that_is_cancelled_says_so",
    "hello_is_late",
)
_expect(
    "an end that is kept back tells no usage either",
    "generation.a_generation_that_is_cancelled_says_so",
    "purge_without_done",
)
_expect(
    "the items of a batch are told in each other's places",
    "deadlines.a_deadline_leaves_what_has_ended",
    "results_in_wrong_slots",
)
_expect(
    "an interval that is not kept is not kept however it is written",
    "parameters.an_interval_is_a_number_without_a_sign",
    "snapshots_at_the_pace_of_the_job",
)
_expect(
    "a key is sent again after an expiry as well",
    "durable.an_expired_job_is_gone",
    "the_same_key_runs_twice",
)
_expect(
    "what tries the bounds of JSON are members that nobody knows",
    "bodies.the_rules_of_json_hold_up_to_their_bounds",
    "unknown_members_are_refused",
)
_expect(
    "jobs that are cancelled and go on never make room for another",
    "limits_per_caller.a_job_too_many_is_refused",
    "cancel_answers_and_runs_on",
)
_expect(
    "a stream without diffs is a fresh one",
    "snapshots_only.a_stream_without_diffs_has_snapshots_and_done",
    "first_event_is_a_diff",
)
_expect(
    "replicas are asked for the purge of what runs, too, and for stream tokens",
    "durable.any_replica_answers_for_any_job",
    "purge_without_done", "a_capability_is_made_up",
)  # fmt: skip
_expect(
    "what stands for a trimmed beginning is told in snapshots alone as well",
    "snapshots_only.a_stream_without_diffs_judges_its_cursor",
    "the_oldest_snapshot_is_called_the_start",
)

UNDETECTABLE = {
    "`hello` comes once more, later on a connection": "section 3.7 wants it first, and says nothing of a second one",
    "`usage` gets smaller while a job runs": "its members are free, and no sentence lets them only grow",
    "The title of one code is another each time": "section 9.1 tells it of titles, in a table that no sentence makes binding",
    "`type` stands beside a code of the registry": "the same: what is absent stands in a table alone",
    "`HEAD` is answered by 404, 405 or 200": "no sentence speaks of it",
    "The log-probabilities of a prompt are fewer than its tokens": "the sentence on equal lengths is about generated tokens (TW-GEN-011)",
    "A job that was purged stands in the list": "no sentence takes it out of there (TW-JOB-062 is about requests for it)",
    "A stream stays open for seconds after `done`": "section 3.1 names no time in which it is closed; one that stays open is noticed",
    "A URL with a slash at its end is redirected, or answered": "a server may have more URLs than those of section 6.1",
    "`defaults` of an endpoint in discovery is wrong": "whether `{}` is taken stands in a table alone",
    "A scheme of credentials is known in capitals alone": "how credentials come is for the server to say (TW-SEC-029)",
    "A description of an endpoint names another one": "its name stands in a table alone",
    "Endpoints and vocabularies are told without credentials": "which of these are needed is for the server to say (TW-SEC-003, TW-DSC-002)",
    "A replica is slow to tell what another one has written": "an event is due where it is known (TW-FRM-006), and no sentence says how soon a replica knows",
    "`next` of the list forgets the `limit`": "it is opaque, and a page may have fewer or more (TW-JOB-048 is about a limit that is given)",
    "`1.0` in a cancel is taken for 1": "it is for who writes a number to write it so (TW-OVR-010)",
    "`shared` beside an input that is a number is passed over": "it takes an endpoint whose inputs are numbers; of others such an input is refused in any case",
    "A GET opens an epoch": "a write does not show (TW-RES-013), and its epoch may have been opened by a recovery",
    "An example of an endpoint is slow, or dear": "nothing bounds what an example takes",
    "`inputs` is an object, and taken": "the sentences on a submit name an empty list, and not another type (TW-JOB-011, TW-JOB-083)",
    "`ended_at` is left out, or before `created_at`": "a table says when they are there, and no sentence that they are, or in what order",
    "A wrong cursor of a job that is gone is answered with 400": "of two faults any may be told (TW-ERR-010), whatever the order of the rows",
}
"""Faults that were tried, and that no requirement forbids, or no response shows."""


def is_expected(server: FaultyServer, name: str) -> bool:
    """Whether a check may fail for a faulty server that another check has to notice."""
    check = next(each for each in registry.checks() if each.name == name)
    same = (
        name.partition(".")[0] == server.check.partition(".")[0] or server.requirement in check.requirements
    )
    _, *patterns = EXPECTED_SIDE_FAILURES.get(server.name, ("",))
    return same or any(fnmatch(name, pattern) for pattern in patterns)
