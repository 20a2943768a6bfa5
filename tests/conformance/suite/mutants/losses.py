"""What gets lost on the way: in a snapshot, at the edge of a log, in a digest, and between a key and its job."""

import re

from conformance.suite.meddling import HANG, problem
from conformance.suite.mutants import mutant
from conformance.suite.mutants.resume import seq_of
from conformance.suite.mutants.state import digest_by

SNAPSHOT = "cursors.a_snapshot_holds_all_that_the_diffs_gave"
URL = "cursors.a_cursor_in_the_url_is_as_good_as_a_header"
RUNNING = "cursors.a_job_that_runs_does_not_wait_for_a_cursor_to_come_true"
TRIMMED = "resume.a_trimmed_log_is_bridged_by_a_snapshot"
KEY = "idempotency.a_refused_submit_leaves_its_key_free"


def left_out(hooks, pattern, by=b""):
    """Snapshots that are not in the log leave something out."""
    hooks.frames.append(
        lambda talk, frame: re.sub(pattern, by, frame) if b'"reason":"compacted"' in frame else frame
    )


@mutant("TW-RES-007", SNAPSHOT)
def snapshots_have_no_notes(hooks):
    """Notes are told by diffs, and left out of snapshots."""
    left_out(hooks, rb'"notes":\[\{.*?\}\]', b'"notes":[]')


@mutant("TW-RES-007", SNAPSHOT)
def snapshots_take_stable_back(hooks):
    """`stable` is told by diffs, and left out of snapshots."""
    left_out(hooks, rb',"stable":\{[^}]*\}')


@mutant("TW-RES-007", SNAPSHOT)
def snapshots_do_not_tell_of_the_batch(hooks):
    """How an item was batched is left out of snapshots."""
    left_out(hooks, rb',"batch":\{[^}]*\}')


@mutant("TW-RES-007", SNAPSHOT)
def snapshots_tell_another_error(hooks):
    """The error of an item loses its detail in snapshots."""
    left_out(hooks, rb',"detail":"[^"]*"')


@mutant("TW-RES-009", URL)
def after_is_not_decoded(hooks):
    """`after` is taken as it stands in the URL."""
    hooks.instead.append(
        lambda talk: (
            problem(400, "bad_cursor")
            if re.search(rb"after=[^&]*%(2D|31)", talk.scope["query_string"])
            else None
        )
    )


@mutant("TW-RES-012", URL)
def the_cursor_0_1_is_known_in_the_header_alone(hooks):
    """`after=0-1` is taken for no id."""
    hooks.instead.append(
        lambda talk: problem(400, "bad_cursor") if b"after=0-1" in talk.scope["query_string"] else None
    )


@mutant("TW-RES-047", RUNNING)
def a_cursor_past_the_head_waits(hooks):
    """A stream that is opened past the head of a job that runs waits for that event."""

    def wait(talk, frame):
        runs = b'"reason":"rewound"' in frame and b'"items":[{"status":"running"' in frame
        return HANG if runs and talk.cursor.startswith("1-") else frame

    hooks.frames.append(wait)


@mutant("TW-RES-018", TRIMMED)
def the_oldest_snapshot_is_called_the_start(hooks):
    """The snapshot with which a trimmed log begins says that it is the start of the job."""
    hooks.frames.append(
        lambda talk, frame: (
            frame.replace(b'"reason":"compacted"', b'"reason":"start"') if talk.cursor == "0-0" else frame
        )
    )


@mutant("TW-RES-020", TRIMMED)
def the_edge_of_the_log_is_off_by_one(hooks):
    """After the oldest snapshot of a trimmed log an event is left out."""

    def skip(talk, frame):
        if talk.cursor == "0-0" and not talk.own.get("first") and seq_of(frame) > 1:
            hooks.shared[talk.path] = seq_of(frame)
        talk.own["first"] = talk.own.get("first") or seq_of(frame)
        edge = hooks.shared.get(talk.path)
        return b"" if edge and talk.cursor == f"1-{edge}" and seq_of(frame) == edge + 1 else frame

    hooks.frames.append(skip)


@mutant("TW-JOB-034", KEY)
def a_key_is_kept_before_the_media_type_is_judged(hooks):
    """The key of a submit of another media type is kept with what came."""

    def refuse(talk):
        if talk.key and "json" not in talk.header("content-type"):
            hooks.shared[talk.key] = "kept"
        elif talk.key and hooks.shared.get(talk.key) == "kept":
            return problem(422, "idempotency_key_reused")
        return None

    hooks.instead.append(refuse)


@mutant("TW-JOB-034", KEY)
def not_acceptable_is_found_out_late(hooks):
    """A submit that accepts neither form runs its job, and is refused when it comes to the answer."""
    late = lambda talk: talk.own.get("accept") == "text/html"  # noqa: E731

    def remember(talk):
        talk.own["accept"] = talk.header("accept") if talk.is_submit else ""
        if late(talk):
            talk.set_header("accept", "application/json")

    hooks.requests.append(remember)
    hooks.heads.append(
        lambda talk, status, headers: headers.update(problem(406, "")[1]) if late(talk) else None
    )
    hooks.bodies.append(
        lambda talk, status, body: problem(406, "not_acceptable")[::2] if late(talk) else None
    )


@mutant("TW-DIF-051", "proofs.the_64th_change_is_proved")
def texts_are_proved_at_their_end_alone(hooks):
    """A text that only grows is proved when its item ends."""

    def prove(talk, frame):
        found = re.search(rb'data:\{"ops":(\[\["[ar]".*?\]\]),"check":', frame)
        return frame[: found.start()] + b"data:" + found[1] + b"\n\n" if found else frame

    hooks.frames.append(prove)


@mutant("TW-DIF-055", "state.diffs_rebuild_the_value")
def a_digest_that_knows_a_zero_below_nothing(hooks):
    """In what the digest is of, the zero with a sign keeps it."""
    import rfc8785

    digest_by(lambda items: rfc8785.dumps(items).decode().replace("0.5,0,", "0.5,-0,"))
