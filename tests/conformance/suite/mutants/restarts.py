"""What a server forgets, or begins anew, over a restart and an expiry."""

import json
import re

from conformance.suite.meddling import problem
from conformance.suite.mutants import mutant
from conformance.suite.mutants.durable import OTHER_EPOCH, RESTART, after_a_restart

ENDED = "durable.what_had_ended_stays_so_after_a_restart"
EXPIRED = "durable.an_expired_job_is_gone"


def in_the_second_life(hooks, change):
    """Change requests of the second life of a server with a log that lasts."""
    hooks.lasts = True
    if hooks.shared["life"] > 1:
        hooks.requests.append(change)


@mutant("TW-RES-037", RESTART)
def attempts_are_counted_twice(hooks):
    """Each start of a worker counts as two attempts."""
    hooks.lasts = True
    twice = lambda found: b'"attempt":%d' % (2 * int(found[1]) - 1)  # noqa: E731
    hooks.bodies.append(lambda talk, status, body: (status, re.sub(rb'"attempt":(\d+)', twice, body)))


@mutant("TW-RES-012", RESTART)
def ids_of_the_old_epoch_are_rewound(hooks):
    """After a restart each id of the old epoch is taken for one that never was."""
    in_the_second_life(
        hooks,
        lambda talk: talk.cursor.startswith("1-") and talk.set_header("last-event-id", "999999-1"),
    )


@mutant("TW-RES-012", RESTART)
def only_seqs_are_compared(hooks):
    """A cursor past the end of the old epoch is answered with what comes after its seq, without a snapshot."""
    past = lambda talk, frame: talk.cursor.startswith("1-") and b'"reason":"rewound"' in frame  # noqa: E731
    after_a_restart(hooks, lambda talk, frame: b"" if past(talk, frame) else frame)


@mutant("TW-FRM-060", RESTART)
def hello_knows_the_first_life_alone(hooks):
    """After a restart `head` of `hello` is the first id of the job."""
    after_a_restart(
        hooks,
        lambda talk, frame: (
            re.sub(rb'"head":"[^"]*"', b'"head":"1-1"', frame) if b"event:hello" in frame else frame
        ),
    )


@mutant("TW-OVR-024", ENDED)
def keys_are_forgotten_at_a_restart(hooks):
    """Keys are kept in memory alone."""
    in_the_second_life(
        hooks,
        lambda talk: talk.key and talk.set_header("idempotency-key", f"{talk.key}-{talk.shared['life']}"),
    )


@mutant("TW-JOB-062", ENDED)
def tombstones_are_forgotten_at_a_restart(hooks):
    """After a restart a job that was purged is answered like one that never was."""
    hooks.lasts = True
    if hooks.shared["life"] > 1:
        hooks.bodies.append(
            lambda talk, status, body: problem(404, "job_not_found")[::2] if status == 410 else None
        )


@mutant("TW-RES-036", ENDED)
def a_new_attempt_runs_all_items(hooks):
    """A new attempt voids the values of all items, also of those that had ended."""

    def again(talk, frame):
        if not OTHER_EPOCH.match(frame) or b'"reason":"restart"' not in frame:
            return frame
        return re.sub(rb'"status":"succeeded","value":"[^"]*"', b'"status":"queued","value":""', frame)

    after_a_restart(hooks, again)


@mutant("TW-JOB-033", EXPIRED)
def an_expiry_frees_the_key(hooks):
    """The key of a job that has expired starts another one."""

    def note(talk, status, body):
        if talk.method == "DELETE":
            hooks.shared[talk.path] = "purged"
        if talk.key and status == 201:
            hooks.shared[talk.key] = json.loads(body)
        job = hooks.shared.get(talk.key, {})
        freed = status == 410 and job and hooks.shared.get(f"/v1/jobs/{job['id']}") != "purged"
        return (201, json.dumps(job).encode()) if freed else None

    hooks.bodies.append(note)


@mutant("TW-RES-028", EXPIRED)
def a_cancel_of_an_expired_job_finds_nothing(hooks):
    """Reads know the tombstone of a job, and a cancel does not."""
    hooks.bodies.append(
        lambda talk, status, body: (
            problem(404, "job_not_found")[::2] if status == 410 and talk.path.endswith("/cancel") else None
        )
    )
