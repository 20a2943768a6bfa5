"""Streams that are kept awake by halves, and answers that wait for the work."""

import asyncio
import re

from conformance.suite.mutants import benign, mutant

SILENT = "ephemeral.a_silent_stream_is_pinged"
PING = b"event:ping\n"


def silent_where(hooks, holds):
    """Leave out pings of streams of which something holds."""
    hooks.frames.append(lambda talk, frame: b"" if PING in frame and holds(talk) else frame)


@mutant("TW-FRM-068", SILENT)
def only_the_first_silence_is_broken(hooks):
    """The timer of the heartbeat is not set again after the first ping."""

    def later(talk):
        talk.own["pings"] = talk.own.get("pings", 0) + 1
        return talk.own["pings"] > 1

    silent_where(hooks, later)


@mutant("TW-FRM-068", SILENT)
def no_ping_after_a_resume(hooks):
    """A stream that was opened with a cursor gets no ping."""
    silent_where(hooks, lambda talk: talk.cursor)


@mutant("TW-FRM-068", SILENT)
def no_ping_where_a_submit_is_answered(hooks):
    """A stream that answers a submit gets no ping."""
    silent_where(hooks, lambda talk: talk.is_submit)


@mutant("TW-FRM-068", SILENT)
def no_ping_without_diffs(hooks):
    """A stream of snapshots gets no ping."""
    silent_where(hooks, lambda talk: b"diffs=0" in talk.scope["query_string"])


@mutant("TW-FRM-068", SILENT)
def hello_promises_a_quicker_heartbeat(hooks):
    """`hello` names a heartbeat that is not kept."""
    hooks.settings["heartbeat"] = 5.0
    hooks.frames.append(lambda talk, frame: re.sub(rb'"heartbeat_ms":\d+', b'"heartbeat_ms":100', frame))


@mutant("TW-FRM-005", "framing.hello_comes_within_a_second")
def a_submit_waits_for_its_job(hooks):
    """A submit that asks for a stream is answered once its job has begun to give something."""

    async def wait(talk):
        if talk.is_submit and "event-stream" in talk.header("accept"):
            await asyncio.sleep(1.3)

    hooks.requests.append(wait)


@mutant("TW-FRM-012", "framing.streams_are_framed_as_the_grammar_says", "framing.hello_comes_within_a_second")
def an_empty_event_keeps_a_stream_awake(hooks):
    """An event without data, and so one of the log without a state, follows `hello`."""
    hooks.frames.append(lambda talk, frame: frame + b"data:\n\n" if b"event:hello" in frame else frame)


@benign
def comments_in_place_of_pings(hooks):
    """A comment comes before each heartbeat is over, so that no ping is owed."""
    hooks.frames.append(lambda talk, frame: b":awake\n\n" if PING in frame else frame)
    longer = lambda body: body.replace(b'"heartbeat_ms":400', b'"heartbeat_ms":600')  # noqa: E731
    hooks.frames.append(lambda talk, frame: longer(frame))
    hooks.bodies.append(lambda talk, status, body: (status, longer(body)))
