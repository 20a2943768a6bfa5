"""Faulty servers with errors in durable logs, epochs, restarts or replicas."""

import json
import re

from proof.servers.expected_side_failures import GONE, WRONG_EVENT, WRONG_NEW_ATTEMPT
from proof.servers.fault_helpers import (
    after_a_restart,
    change_key,
    drop_events,
    gone_is_unknown,
    refuse,
    rewrite_body,
    rewrite_events,
    set_request_header,
)
from proof.servers.fault_proxy import problem
from proof.servers.faults import fault, faulty_server

OTHER_EPOCH = re.compile(rb"^id:(?!1-)(\d+)-(\d+)\n")
"""Start of an event whose epoch is not the first."""
NEW_ITEM = rb'\{"status":"queued","value":""\}'
RESTART = b'"reason":"restart"'


def no_grace_after_a_restart(hooks):
    """End the grace period of each job immediately after a restart."""
    from tidewire_server.jobs.admission.stream_limit_and_unread_jobs import StreamReaders

    inner = StreamReaders.watch
    if hooks.shared["life"] > 1:
        StreamReaders.watch = lambda readers, job, grace, cancel: inner(readers, job, 0.1, cancel)


def epochs_count_by_one(hooks):
    """Number each new epoch without a random step."""
    from tidewire_server.job_log import snapshot_events

    snapshot_events._EPOCH_STEPS = 1


# fmt: off
fault("restart_counts_towards_the_grace_period", "TW-JOB-067", "durable.restart_does_not_count_towards_the_grace_period",
      "A restart counts towards the grace period of a job, which is over when the server is back.",
      has_durable_log=True, install=no_grace_after_a_restart)
fault("memory_log_declared_as_host", "TW-DSC-010", "durable.sent_events_survive_a_restart",
      "The log is kept in memory, but the server declares the durability `host`.",
      bodies=rewrite_body(b'"durability":"process"', b'"durability":"host"', at="/v1"))
fault("restart_loses_a_sent_event", "TW-OVR-023", "durable.sent_events_survive_a_restart",
      "A restart loses an event that was already sent.",
      has_durable_log=True,
      frames=after_a_restart(lambda exchange, frame: b"" if frame.startswith(b"id:1-4\n") else frame),
      also_fails=WRONG_EVENT)
fault("restart_loses_the_last_event_of_a_running_job", "TW-OVR-023", "durable.sent_events_survive_a_restart",
      "A restart loses the last event that was sent of a job that had not ended.",
      has_durable_log=True,
      frames=after_a_restart(drop_events(b'id:1-3\ndata:"Hel"')),
      requests=after_a_restart(set_request_header("last-event-id", "17-3", lambda exchange: exchange.cursor == "1-3")),
      also_fails=WRONG_EVENT)
fault("new_epoch_begins_with_a_diff", "TW-RES-034", "durable.sent_events_survive_a_restart",
      "A new epoch begins with a diff to the state of the old epoch instead of a snapshot.",
      has_durable_log=True, frames=after_a_restart(drop_events(RESTART)),
      also_fails=WRONG_EVENT)
fault("epoch_reused_after_restart", "TW-RES-033", "durable.sent_events_survive_a_restart",
      "A new attempt after a restart reuses the old epoch.",
      has_durable_log=True,
      frames=after_a_restart(lambda exchange, frame: OTHER_EPOCH.sub(rb"id:1-\2\n", frame)),
      also_fails={"the head is in a later epoch than `done`": "framing.streams_begin_with_hello"})
fault("new_epoch_without_a_random_step", "TW-RES-033", "durable.new_epoch_begins_with_a_snapshot",
      "The number of each new epoch is that of the epoch before plus 1.",
      has_durable_log=True, install=epochs_count_by_one,
      also_run="durable.sent_events_survive_a_restart durable.ended_items_keys_and_purges_survive_a_restart")
fault("new_attempt_has_reason_compacted", "TW-RES-035", "durable.sent_events_survive_a_restart",
      "The snapshot of a new attempt has the reason `compacted` instead of `restart`.",
      has_durable_log=True, frames=after_a_restart(rewrite_events(RESTART, b'"reason":"compacted"')))
fault("attempt_always_1", "TW-RES-037", "durable.sent_events_survive_a_restart",
      "`attempt` is always 1.",
      has_durable_log=True, bodies=rewrite_body(rb'"attempt":\d+', b'"attempt":1'))
fault("attempts_counted_twice", "TW-RES-037", "durable.sent_events_survive_a_restart",
      "Each attempt after the first attempt is counted twice.",
      has_durable_log=True,
      bodies=rewrite_body(rb'"attempt":(\d+)', lambda found: b'"attempt":%d' % (2 * int(found[1]) - 1)))
fault("old_epoch_cursors_rewound", "TW-RES-012", "durable.sent_events_survive_a_restart",
      "After a restart, every cursor of the old epoch is treated as unknown.",
      has_durable_log=True,
      requests=after_a_restart(
          lambda exchange: exchange.cursor.startswith("1-") and exchange.set_header("last-event-id", "999999-1")))
fault("hello_head_is_first_id_after_restart", "TW-FRM-060", "durable.sent_events_survive_a_restart",
      "After a restart, the member `head` of `hello` is the id of the job's first event.",
      has_durable_log=True,
      frames=after_a_restart(rewrite_events(rb'"head":"[^"]*"', b'"head":"1-1"', within=b"event:hello")))
fault("restart_invalidates_stream_tokens", "TW-BRW-014", "durable.sent_events_survive_a_restart",
      "A restart invalidates stream tokens.",
      has_durable_log=True,
      instead=after_a_restart(refuse(lambda exchange: b"token=" in exchange.query, 401, "unauthorized")))
fault("new_attempt_keeps_old_values", "TW-RES-050", "durable.sent_events_survive_a_restart",
      "After a restart, a new attempt begins with the items running, and with their old values.",
      has_durable_log=True,
      frames=after_a_restart(rewrite_events(NEW_ITEM, b'{"status":"running","value":"Hel"}', within=RESTART)),
      also_fails=WRONG_EVENT)
fault("new_attempt_keeps_values_undeclared", "TW-RES-050", "durable.sent_events_survive_a_restart",
      'A new attempt keeps the values of its items, although the endpoint does not say `"on_restart": "continue"`.',
      has_durable_log=True,
      frames=after_a_restart(rewrite_events(NEW_ITEM, b'{"status":"queued","value":"Hel"}', within=RESTART)),
      also_fails=WRONG_EVENT)
fault("old_epoch_cursor_compared_by_seq", "TW-RES-012", "durable.sent_events_survive_a_restart",
      "After a restart, a cursor after the end of the old epoch is compared only by its sequence number.",
      has_durable_log=True,
      frames=after_a_restart(drop_events(b'"reason":"rewound"', lambda exchange: exchange.cursor.startswith("1-"))),
      also_fails=WRONG_NEW_ATTEMPT)

fault("new_attempt_retracts_although_it_continues", "TW-RES-051", "durable.interrupted_job_keeps_its_values",
      'Each endpoint says `"on_restart": "continue"`, but a new attempt retracts the values of its items.',
      has_durable_log=True,
      bodies=rewrite_body(b'"on_restart":"rerun"', b'"on_restart":"continue"', at="/v1/endpoints/.*"))
fault("kept_value_loses_its_last_letter", "TW-RES-051", "durable.interrupted_job_keeps_its_values",
      "A new attempt that continues keeps the value without its last letter.",
      has_durable_log=True,
      frames=after_a_restart(rewrite_events(rb'("status":"queued","value":"[^"]*)[^"]"', rb'\1"', within=RESTART)),
      also_fails=WRONG_EVENT)
fault("new_attempt_begins_running", "TW-RES-049", "durable.interrupted_job_keeps_its_values",
      "The snapshot that opens a new attempt already has the status running for its items.",
      has_durable_log=True,
      frames=after_a_restart(
          rewrite_events(rb'\{"status":"queued","value"', b'{"status":"running","value"', within=RESTART)))

fault("expired_job_gets_404", "TW-RES-028", "durable.expired_job_returns_410",
      "A request for an expired job is answered with 404 instead of 410.",
      bodies=gone_is_unknown(),
      also_fails=GONE)
fault("cancel_of_expired_job_gets_404", "TW-RES-028", "durable.expired_job_returns_410",
      "A request to cancel an expired job is answered with 404 instead of 410.",
      bodies=gone_is_unknown(at=".*/cancel"))

fault("lagging_replica_rewinds", "TW-RES-045", "durable.any_replica_serves_any_job",
      "A replica that lags behind treats a newer cursor as unknown, instead of checking the primary copy.",
      requests=set_request_header("last-event-id", "40000-2",
          lambda exchange: exchange.is_to_the_replica and exchange.cursor not in {"", "0-0"}))
fault("replica_serves_only_its_own_jobs", "TW-DEP-006", "durable.any_replica_serves_any_job",
      "A replica knows only the jobs that were submitted to it.",
      instead=refuse(lambda exchange: exchange.is_to_the_replica and exchange.path.startswith("/v1/jobs/"),
          404, "job_not_found"))
fault("replica_lists_only_its_own_jobs", "TW-DEP-006", "durable.any_replica_serves_any_job",
      "The job list of a replica contains only jobs that were submitted to this replica.",
      bodies=lambda exchange, status, body: (status, b'{"jobs":[]}')
      if exchange.is_to_the_replica and exchange.path == "/v1/jobs" else None)
fault("replicas_do_not_share_keys", "TW-JOB-028", "durable.any_replica_serves_any_job",
      "Replicas do not share idempotency keys.",
      requests=change_key(lambda exchange: f"there-{exchange.key}", lambda exchange: exchange.is_to_the_replica))
fault("replicas_number_events_differently", "TW-RES-007", "durable.any_replica_serves_any_job",
      "Replicas number the events of a job differently.",
      frames=rewrite_events(rb"^id:1-(\d+)\n", lambda found: b"id:1-%d\n" % (int(found[1]) + 1),
          where=lambda exchange: exchange.is_to_the_replica),
      also_fails=WRONG_EVENT)

fault("restart_loses_idempotency_keys", "TW-OVR-024", "durable.ended_items_keys_and_purges_survive_a_restart",
      "After a restart, the server no longer knows the idempotency keys.",
      has_durable_log=True,
      requests=after_a_restart(change_key(lambda exchange: f"{exchange.key}-{exchange.shared['life']}")))
fault("restart_loses_tombstones", "TW-JOB-062", "durable.ended_items_keys_and_purges_survive_a_restart",
      "After a restart, the server no longer knows which jobs were purged.",
      has_durable_log=True, bodies=after_a_restart(gone_is_unknown()))
fault("job_list_empty_after_restart", "TW-OVR-024", "durable.ended_items_keys_and_purges_survive_a_restart",
      "The job list is empty after a restart.",
      has_durable_log=True,
      bodies=after_a_restart(rewrite_body(rb'.*"jobs":.*', b'{"jobs":[]}', at="/v1/jobs")),
      also_fails={"the server stays without a list after the restart":
          "requests_with_several_errors.refused_submit_starts_no_job"})
fault("new_attempt_restarts_succeeded_items", "TW-OVR-019",
      "durable.ended_items_keys_and_purges_survive_a_restart",
      "A new attempt also restarts items that have already succeeded.",
      has_durable_log=True,
      frames=after_a_restart(
          rewrite_events(rb'"status":"succeeded","value":"[^"]*"', b'"status":"queued","value":""', within=RESTART)),
      also_fails=WRONG_NEW_ATTEMPT)
# fmt: on


@faulty_server(
    "TW-OVR-024",
    "durable.sent_events_survive_a_restart",
    hook="bodies",
    has_durable_log=True,
    also_fails={
        "the server sends the error response with the media type of a job": "errors.errors_are_valid_problem_documents"
    },
)
@after_a_restart
def restart_loses_running_jobs(exchange, status, body):
    """A restart loses jobs that have not ended."""
    unended = exchange.method == "GET" and b'"attempt":2' in body
    return problem(404, "job_not_found")[::2] if unended else None


@faulty_server(
    "TW-RES-038",
    "durable.new_epoch_begins_with_a_snapshot",
    hook="frames",
    has_durable_log=True,
    also_run="durable.sent_events_survive_a_restart",
    also_fails=WRONG_EVENT,
)
@after_a_restart
def new_epoch_after_done(exchange, frame):
    """After a restart, a job that had already ended gets a new epoch."""
    ended = b"event:done\n" in frame and frame.startswith(b"id:1-")
    more = b'id:9-99\nevent:snapshot\ndata:{"state":{"status":"running","items":[{"status":"queued","value":""}],"usage":{},'
    return frame + more + b'"notes":[]},"columns":[],"reason":"restart"}\n\n' if ended else frame


@faulty_server(
    "TW-JOB-033",
    "durable.expired_job_returns_410",
    hook="bodies",
    also_fails={
        "the response keeps the media type of a problem": "errors.successful_responses_are_application_json"
    },
)
def expired_job_frees_its_key(exchange, status, body):
    """The idempotency key of an expired job can be used again."""
    if exchange.method == "DELETE":
        exchange.shared[exchange.path] = "purged"
    if exchange.key and status == 201:
        exchange.shared[exchange.key] = json.loads(body)
    job = exchange.shared.get(exchange.key, {})
    freed = status == 410 and job and exchange.shared.get(f"/v1/jobs/{job['id']}") != "purged"
    return (201, json.dumps(job).encode()) if freed else None


@faulty_server("TW-DEP-006", "durable.any_replica_serves_any_job", hook="requests")
def cancel_at_another_replica_has_no_effect(exchange):
    """A cancel request at another replica is accepted, but has no effect."""
    if exchange.is_to_the_replica and exchange.path.endswith("/cancel"):
        exchange.scope["method"], exchange.path = "GET", exchange.path.removesuffix("/cancel")


@faulty_server("TW-BRW-014", "durable.any_replica_serves_any_job", hook="requests")
def replicas_do_not_share_stream_tokens(exchange):
    """Replicas do not accept each other's stream tokens."""
    if exchange.is_to_the_replica:
        exchange.query = re.sub(rb"token=[^&]+", b"token=" + b"x" * 43, exchange.query)


@faulty_server("TW-JOB-062", "durable.any_replica_serves_any_job")
def replica_serves_purged_job_from_cache(hooks):
    """After a job was purged, a replica still serves the job from its cache."""
    header = {"content-type": "application/json", "cache-control": "no-store"}

    def remember(exchange, status, body):
        if exchange.is_submit and status == 201:
            hooks.shared[f"/v1/jobs/{json.loads(body)['id']}"] = body

    def forget(exchange, status, headers):
        if exchange.method == "DELETE" and status == 204:
            hooks.shared.setdefault("purged", set()).add(exchange.path)

    def recall(exchange):
        held = exchange.is_to_the_replica and exchange.method == "GET"
        is_purged = held and exchange.path in hooks.shared.get("purged", ())
        return (200, header, hooks.shared[exchange.path]) if is_purged else None

    hooks.bodies.append(remember)
    hooks.heads.append(forget)
    hooks.instead.append(recall)
