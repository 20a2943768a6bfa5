"""Faulty servers with errors in durable logs, epochs, restarts or replicas."""

import json
import re

from proof.servers.fault_helpers import gone_is_unknown, refuse, rewrite_body, set_request_header
from proof.servers.fault_proxy import problem
from proof.servers.faults import faulty_server

OTHER_EPOCH = re.compile(rb"^id:(?!1-)(\d+)-(\d+)\n")


def after_a_restart(hooks, change):
    """Change events that a server with a durable log sends after its first restart."""
    hooks.has_durable_log = True
    if hooks.shared["life"] > 1:
        hooks.frames.append(change)


def change_requests_after_a_restart(hooks, change):
    """Change requests that a server with a durable log receives after its first restart."""
    hooks.has_durable_log = True
    if hooks.shared["life"] > 1:
        hooks.requests.append(change)


@faulty_server("TW-DSC-010", "durable.sent_events_survive_a_restart")
def memory_log_declared_as_host(hooks):
    """The log is kept in memory, but the server declares the durability `host`."""
    rewrite_body(hooks, b'"durability":"process"', b'"durability":"host"', at="/v1")


@faulty_server("TW-OVR-023", "durable.sent_events_survive_a_restart")
def restart_loses_a_sent_event(hooks):
    """A restart loses an event that was already sent."""
    after_a_restart(hooks, lambda exchange, frame: b"" if frame.startswith(b"id:1-4\n") else frame)


@faulty_server("TW-BRW-014", "durable.sent_events_survive_a_restart")
def restart_invalidates_stream_tokens(hooks):
    """A restart invalidates stream tokens."""
    hooks.has_durable_log = True
    if hooks.shared["life"] > 1:
        refuse(hooks, lambda exchange: b"token=" in exchange.query, 401, "unauthorized")


@faulty_server("TW-OVR-024", "durable.sent_events_survive_a_restart")
def restart_loses_running_jobs(hooks):
    """A restart loses jobs that have not ended."""
    hooks.has_durable_log = True

    def forget(exchange, status, body):
        unended = hooks.shared["life"] > 1 and exchange.method == "GET" and b'"attempt":2' in body
        return problem(404, "job_not_found")[::2] if unended else None

    hooks.bodies.append(forget)


@faulty_server("TW-RES-034", "durable.sent_events_survive_a_restart")
def new_epoch_begins_with_a_diff(hooks):
    """A new epoch begins with a diff to the state of the old epoch instead of a snapshot."""
    after_a_restart(
        hooks, lambda exchange, frame: b"" if OTHER_EPOCH.match(frame) and b'"restart"' in frame else frame
    )


@faulty_server("TW-RES-033", "durable.sent_events_survive_a_restart")
def epoch_reused_after_restart(hooks):
    """A new attempt after a restart reuses the old epoch."""
    after_a_restart(hooks, lambda exchange, frame: OTHER_EPOCH.sub(rb"id:1-\2\n", frame))


@faulty_server("TW-RES-035", "durable.sent_events_survive_a_restart")
def new_attempt_has_reason_compacted(hooks):
    """The snapshot of a new attempt has the reason `compacted` instead of `restart`."""
    after_a_restart(
        hooks, lambda exchange, frame: frame.replace(b'"reason":"restart"', b'"reason":"compacted"')
    )


@faulty_server("TW-RES-050", "durable.sent_events_survive_a_restart")
def new_attempt_keeps_old_values(hooks):
    """After a restart, a new attempt begins with the items running, and with their old values."""
    old = b'{"status":"running","value":"Hel"}'
    after_a_restart(
        hooks,
        lambda exchange, frame: (
            re.sub(rb'\{"status":"queued","value":""\}', old, frame)
            if b'"reason":"restart"' in frame
            else frame
        ),
    )


@faulty_server("TW-RES-050", "durable.sent_events_survive_a_restart")
def new_attempt_keeps_values_undeclared(hooks):
    """A new attempt keeps the values of its items, although the endpoint does not say `"on_restart": "continue"`."""

    def keep(exchange, frame):
        kept = b'{"status":"queued","value":"Hel"}'
        return re.sub(rb'\{"status":"queued","value":""\}', kept, frame) if b'"restart"' in frame else frame

    after_a_restart(hooks, keep)


@faulty_server("TW-RES-051", "durable.interrupted_job_keeps_its_values")
def new_attempt_retracts_although_it_continues(hooks):
    """Each endpoint says `"on_restart": "continue"`, but a new attempt retracts the values of its items."""
    hooks.has_durable_log = True
    rewrite_body(hooks, b'"on_restart":"rerun"', b'"on_restart":"continue"', at="/v1/endpoints/.*")


@faulty_server("TW-RES-051", "durable.interrupted_job_keeps_its_values")
def kept_value_loses_its_last_letter(hooks):
    """A new attempt that continues keeps the value without its last letter."""

    def shorten(exchange, frame):
        cut = re.sub(rb'("status":"queued","value":"[^"]*)[^"]"', rb'\1"', frame)
        return cut if b'"reason":"restart"' in frame else frame

    after_a_restart(hooks, shorten)


@faulty_server("TW-RES-049", "durable.interrupted_job_keeps_its_values")
def new_attempt_begins_running(hooks):
    """The snapshot that opens a new attempt already has the status running for its items."""

    def run(exchange, frame):
        queued, running = b'{"status":"queued","value"', b'{"status":"running","value"'
        return frame.replace(queued, running) if b'"reason":"restart"' in frame else frame

    after_a_restart(hooks, run)


@faulty_server("TW-RES-037", "durable.sent_events_survive_a_restart")
def attempt_always_1(hooks):
    """`attempt` is always 1."""
    hooks.has_durable_log = True
    rewrite_body(hooks, rb'"attempt":\d+', b'"attempt":1')


@faulty_server(
    "TW-RES-038", "durable.new_epoch_begins_with_a_snapshot", "durable.sent_events_survive_a_restart"
)
def new_epoch_after_done(hooks):
    """After a restart, a job that had already ended gets a new epoch."""

    def again(exchange, frame):
        ended = b"event:done\n" in frame and frame.startswith(b"id:1-")
        more = b'id:9-99\nevent:snapshot\ndata:{"state":{"status":"running","items":[{"status":"queued","value":""}],"usage":{},'
        return frame + more + b'"notes":[]},"columns":[],"reason":"restart"}\n\n' if ended else frame

    after_a_restart(hooks, again)


@faulty_server("TW-RES-028", "durable.expired_job_returns_410")
def expired_job_gets_404(hooks):
    """A request for an expired job is answered with 404 instead of 410."""
    gone_is_unknown(hooks)


@faulty_server("TW-RES-045", "durable.any_replica_serves_any_job")
def lagging_replica_rewinds(hooks):
    """A replica that lags behind treats a newer cursor as unknown, instead of checking the primary copy."""
    past = lambda exchange: exchange.is_to_the_replica and exchange.cursor not in {"", "0-0"}  # noqa: E731
    set_request_header(hooks, "last-event-id", "40000-2", past)


@faulty_server("TW-DEP-006", "durable.any_replica_serves_any_job")
def replica_serves_only_its_own_jobs(hooks):
    """A replica knows only the jobs that were submitted to it."""
    refuse(
        hooks,
        lambda exchange: exchange.is_to_the_replica and exchange.path.startswith("/v1/jobs/"),
        404,
        "job_not_found",
    )


@faulty_server("TW-RES-007", "durable.any_replica_serves_any_job")
def replicas_number_events_differently(hooks):
    """Replicas number the events of a job differently."""

    def count(exchange, frame):
        more = lambda found: b"id:1-%d\n" % (int(found[1]) + 1)  # noqa: E731
        return re.sub(rb"^id:1-(\d+)\n", more, frame) if exchange.is_to_the_replica else frame

    hooks.frames.append(count)


@faulty_server("TW-RES-037", "durable.sent_events_survive_a_restart")
def attempts_counted_twice(hooks):
    """Each attempt after the first attempt is counted twice."""
    hooks.has_durable_log = True
    twice = lambda found: b'"attempt":%d' % (2 * int(found[1]) - 1)  # noqa: E731
    rewrite_body(hooks, rb'"attempt":(\d+)', twice)


@faulty_server("TW-RES-012", "durable.sent_events_survive_a_restart")
def old_epoch_cursors_rewound(hooks):
    """After a restart, every cursor of the old epoch is treated as unknown."""
    change_requests_after_a_restart(
        hooks,
        lambda exchange: (
            exchange.cursor.startswith("1-") and exchange.set_header("last-event-id", "999999-1")
        ),
    )


@faulty_server("TW-RES-012", "durable.sent_events_survive_a_restart")
def old_epoch_cursor_compared_by_seq(hooks):
    """After a restart, a cursor after the end of the old epoch is compared only by its sequence number."""
    past = lambda exchange, frame: exchange.cursor.startswith("1-") and b'"reason":"rewound"' in frame  # noqa: E731
    after_a_restart(hooks, lambda exchange, frame: b"" if past(exchange, frame) else frame)


@faulty_server("TW-FRM-060", "durable.sent_events_survive_a_restart")
def hello_head_is_first_id_after_restart(hooks):
    """After a restart, the member `head` of `hello` is the id of the job's first event."""
    after_a_restart(
        hooks,
        lambda exchange, frame: (
            re.sub(rb'"head":"[^"]*"', b'"head":"1-1"', frame) if b"event:hello" in frame else frame
        ),
    )


@faulty_server("TW-OVR-024", "durable.ended_items_keys_and_purges_survive_a_restart")
def restart_loses_idempotency_keys(hooks):
    """After a restart, the server no longer knows the idempotency keys."""
    change_requests_after_a_restart(
        hooks,
        lambda exchange: (
            exchange.key
            and exchange.set_header("idempotency-key", f"{exchange.key}-{exchange.shared['life']}")
        ),
    )


@faulty_server("TW-JOB-062", "durable.ended_items_keys_and_purges_survive_a_restart")
def restart_loses_tombstones(hooks):
    """After a restart, the server no longer knows which jobs were purged."""
    hooks.has_durable_log = True
    if hooks.shared["life"] > 1:
        hooks.bodies.append(
            lambda exchange, status, body: problem(404, "job_not_found")[::2] if status == 410 else None
        )


@faulty_server("TW-OVR-019", "durable.ended_items_keys_and_purges_survive_a_restart")
def new_attempt_restarts_succeeded_items(hooks):
    """A new attempt also restarts items that have already succeeded."""

    def again(exchange, frame):
        if not OTHER_EPOCH.match(frame) or b'"reason":"restart"' not in frame:
            return frame
        return re.sub(rb'"status":"succeeded","value":"[^"]*"', b'"status":"queued","value":""', frame)

    after_a_restart(hooks, again)


@faulty_server("TW-JOB-033", "durable.expired_job_returns_410")
def expired_job_frees_its_key(hooks):
    """The idempotency key of an expired job can be used again."""

    def note(exchange, status, body):
        if exchange.method == "DELETE":
            hooks.shared[exchange.path] = "purged"
        if exchange.key and status == 201:
            hooks.shared[exchange.key] = json.loads(body)
        job = hooks.shared.get(exchange.key, {})
        freed = status == 410 and job and hooks.shared.get(f"/v1/jobs/{job['id']}") != "purged"
        return (201, json.dumps(job).encode()) if freed else None

    hooks.bodies.append(note)


@faulty_server("TW-RES-028", "durable.expired_job_returns_410")
def cancel_of_expired_job_gets_404(hooks):
    """A request to cancel an expired job is answered with 404 instead of 410."""
    gone_is_unknown(hooks, at=".*/cancel")


@faulty_server("TW-DEP-006", "durable.any_replica_serves_any_job")
def cancel_at_another_replica_has_no_effect(hooks):
    """A cancel request at another replica is accepted, but has no effect."""

    def read(exchange):
        if exchange.is_to_the_replica and exchange.path.endswith("/cancel"):
            exchange.scope["method"], exchange.path = "GET", exchange.path.removesuffix("/cancel")

    hooks.requests.append(read)


@faulty_server("TW-DEP-006", "durable.any_replica_serves_any_job")
def replica_lists_only_its_own_jobs(hooks):
    """The job list of a replica contains only jobs that were submitted to this replica."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            (status, b'{"jobs":[]}') if exchange.is_to_the_replica and exchange.path == "/v1/jobs" else None
        )
    )


@faulty_server("TW-JOB-028", "durable.any_replica_serves_any_job")
def replicas_do_not_share_keys(hooks):
    """Replicas do not share idempotency keys."""
    hooks.requests.append(
        lambda exchange: (
            exchange.key
            and exchange.is_to_the_replica
            and exchange.set_header("idempotency-key", f"there-{exchange.key}")
        )
    )


@faulty_server("TW-BRW-014", "durable.any_replica_serves_any_job")
def replicas_do_not_share_stream_tokens(hooks):
    """Replicas do not accept each other's stream tokens."""

    def forget(exchange):
        if exchange.is_to_the_replica:
            exchange.query = re.sub(rb"token=[^&]+", b"token=" + b"x" * 43, exchange.query)

    hooks.requests.append(forget)


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


@faulty_server("TW-OVR-024", "durable.ended_items_keys_and_purges_survive_a_restart")
def job_list_empty_after_restart(hooks):
    """The job list is empty after a restart."""
    hooks.has_durable_log = True
    if hooks.shared["life"] > 1:
        hooks.bodies.append(
            lambda exchange, status, body: (status, b'{"jobs":[]}') if exchange.path == "/v1/jobs" else None
        )
