"""The transcript player reports modified transcripts, and servers that send other events."""

import json

import pytest

from scenarios.transcripts.notation import Names, TranscriptError, read
from scenarios.transcripts.player import DifferenceError, Player
from scenarios.transcripts.scenes import SCENES, TRANSCRIPTS
from scenarios.transcripts.stage import Scene, describe, judge_exchanges, playing
from support.scripted_server import CLOSE, RESET, ScriptedServer
from support.server_address import address_of
from support.spec_document import SCHEMAS
from tidewire_server import Server, Stream

STREAM = TRANSCRIPTS["plain-stream"].text.replace(', {"sleep_ms": 50}', "")
JOB = """\
> GET /v1/jobs/{job}
< 200
<
< {"id": "{job}", "batch": false, "attempt": 1, "cursor": "1-6", "created_at": "{time}", "state": {"items": [{"value": "Hello"}]}}
"""


@pytest.fixture(scope="module")
def player():
    with playing(Scene()) as found:
        yield found


def test_the_unmodified_transcript_passes(player):
    player.names = Names()
    player.play(STREAM + JOB)


def block(id_):
    """One event of the transcript, including its final empty line."""
    lines = STREAM.splitlines(keepends=True)
    start = lines.index(f"< id:{id_}\n")
    return "".join(lines[start : lines.index("<\n", start) + 1])


MODIFICATIONS = {
    "another status": ("< 200\n", "< 201\n", "the status is 200, not 201"),
    "another header": ("Cache-Control: no-store, no-t", "Cache-Control: no-t", "the header Cache-Control is"),
    "a header more": ("< X-Accel-Buffering: no\n", "< X-None: 1\n", "the header X-None is ''"),
    "another id": ("id:1-4\n", "id:1-5\n", "the id is 1-4, not 1-5"),
    "another epoch": ("id:1-4\n", "id:2-4\n", "the id is 1-4, not 2-4"),
    "no id": ("< id:1-3\n", "", "the id is 1-3, not absent"),
    "an id for an ephemeral event": ("< event:hello\n", "< id:1-1\n< event:hello\n", "the id is absent, not 1-1"),
    "another type": ("event:snapshot", "event:done", "the event is 'snapshot', not 'done'"),
    "another text": ('data:"lo"', 'data:"la"', 'it is "lo", not "la"'),
    "another check": ("4157704578", "4157704579", "/check/0/2 is 4157704578"),
    "another digest": ("f3b4fcbe34a46c3d", "f3b4fcbe34a46c3e", "/digest is"),
    "a number of another type": ('value",5,', 'value",5.0,', "/check/0/1 is 5, not 5.0"),
    "true for 1": ('value",5,', 'value",true,', "/check/0/1 is 5, not true"),
    "a member that is missing": ('"notes":[]}', '"notes":[],"x":1}', "/state lacks x"),
    "a member more than shown": (',"notes":[]}', "}", "/state has notes as well"),
    "an element more": ('"notes":[]', '"notes":[1]', "/notes has 0 elements, not 1"),
    "an event that is not sent": (block("1-4"), block("1-4") * 2, "the id is 1-5, not 1-4"),
    "an event that is not shown": (block("1-4"), "", "the id is 1-4, not 1-5"),
    "no done": (block("1-6"), "", "the end of the answer is shown, and there came"),
    "an event after done": ("< EOF", block("1-6") + "< EOF", "the answer has ended"),
    "a place in the queue": ("< id:1-1", '< event:queue\n< data:{"position":1}\n<\n< id:1-1', "the event is 'snapshot'"),
    "another job": ('"/v1/jobs/{job}/events"', '"/v1/jobs/{job}x/events"', "/events is"),
    "no time": ('"status":"succeeded","usage"', '"status":"{time}","usage"', "/status is"),
    "no number": ('"protocol":"tidewire/1"', '"protocol":{int}', "/protocol is"),
    "another member of a body": ('"cursor": "1-6"', '"cursor": "1-7"', "/cursor is"),
    "a member of a body that is missing": ('"batch"', '"bulk"', "it lacks bulk"),
    "an element of a body": ('[{"value"', '[{}, {"value"', "/state/items has 1 elements, not 2"),
}  # fmt: skip


@pytest.mark.parametrize("modified", MODIFICATIONS)
def test_a_modified_transcript_fails_with_the_difference(player, modified):
    old, new, message = MODIFICATIONS[modified]
    assert old in STREAM + JOB
    player.names = Names()
    with pytest.raises(DifferenceError) as caught:
        player.play((STREAM + JOB).replace(old, new))
    assert message in str(caught.value)
    assert "of the transcript: " in str(caught.value)


def test_a_server_with_other_text_fails():
    server = Server(merge_window=0)

    @server.endpoint(name="tidewire.script")
    async def says_another_text(script: list, stream: Stream[str]) -> None:
        stream.append("Hel")
        stream.append("io")

    with server.running() as url:
        with (
            Player(address_of(url)) as player,
            pytest.raises(DifferenceError, match='it is "io", not "lo"'),
        ):
            player.play(STREAM)


def test_a_shown_queue_position_must_be_sent():
    text = TRANSCRIPTS["queue-wait"].text.replace('"position":2', '"position":7')
    with (
        playing(SCENES["queue-wait"]) as player,
        pytest.raises(DifferenceError, match="is 'snapshot', not 'queue'"),
    ):
        player.play(text)


# ---- on the wire -------------------------------------------------------------------------------------------------

PART = """\
> GET /v1/jobs/{job}/events
< 200
<
< retry:{int}
<
< event:hello
< data:{"head":"{id}"}
<
< id:1-1
< data:"x"
<
< EOF
"""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = b'retry:7\nevent:hello\ndata:{"head":"1-1"}\n\n'
EVENT = b'id:1-1\ndata:"x"\n\n'


def chunked(*parts):
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def play_response(*chunks):
    def script(request):
        yield from [HEAD, *chunks, CLOSE]

    with ScriptedServer(script) as server, Player(("127.0.0.1", server.port)) as player:
        player.play(PART)


@pytest.mark.parametrize(
    "parts",
    [
        [HELLO + EVENT],
        [HELLO[:20], HELLO[20:] + EVENT[:9], EVENT[9:]],
        [b"retry:7\n\n", HELLO.removeprefix(b"retry:7\n"), EVENT],
        [HELLO, b": a comment\n", EVENT],
        [HELLO, b'event:ping\ndata:{"head":"1-1"}\n\n', b'event:queue\ndata:{"position":1}\n\n', EVENT],
        [HELLO, EVENT, b'event:ping\ndata:{"head":"1-1"}\n\n'],
        [HELLO, b'data: "x"\nid: 1-1\n\n'],
    ],
)
def test_permitted_variations_of_a_stream_pass(parts):
    play_response(chunked(*parts), b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([HELLO.removeprefix(b"retry:7\n"), EVENT], "no `retry` has come"),
        ([HELLO, EVENT.rstrip()], "the answer has ended"),
        ([HELLO, b'id:1-1\ndata:x"\n\n'], "the data is no JSON"),
        ([HELLO, EVENT, EVENT], "there came"),
    ],
)
def test_another_stream_fails(parts, message):
    with pytest.raises(DifferenceError, match=message):
        play_response(chunked(*parts), b"0\r\n\r\n")


@pytest.mark.parametrize("how", [CLOSE, RESET])
def test_a_broken_connection_is_not_an_end_of_the_response(how):
    with pytest.raises(DifferenceError, match="breaks off"):
        play_response(chunked(HELLO, EVENT), how)


def test_the_whole_run_checks_judge_what_no_transcript_shows():
    """A transcript need not show each header. The checks report the `Cache-Control` that this response lacks."""
    body = json.dumps(SCHEMAS["discovery"]["examples"][0] | {"endpoints": []}).encode()
    refusal = b'{"code":"job_not_found","title":"x","status":404,"retryable":false}'

    def script(request):
        status, media, sent = (
            ("200 OK", "application/json", body)
            if request.path == "/v1"
            else ("404 Not Found", "application/problem+json", refusal)
        )
        yield (
            f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len(sent)}\r\n\r\n".encode()
            + sent
        )

    with ScriptedServer(script) as server, Player(("127.0.0.1", server.port)) as player:
        described = describe(player)
        player.play("> GET /v1/jobs/x\n< 404\n")
        with pytest.raises(DifferenceError, match="TW-JOB-004"):
            judge_exchanges(player, described, {})


# ---- notation ----------------------------------------------------------------------------------------------------


def test_later_epochs_are_compared_by_their_order():
    names = Names()
    assert names.match_id("1-3", "1-3")
    assert names.match_id("4711-4", "17-4")
    assert names.match_id("4711-5", "17-5")
    assert not names.match_id("4711-6", "18-6")
    assert not names.match_id("4712-7", "16-7")
    assert names.match_id("4712-7", "20-7")


def test_a_name_keeps_its_value_and_is_drawn_if_sent_first():
    names = Names()
    assert names.match("{a}/{b}", "one/two")
    assert names.match("{b}-{a}", "two-one")
    assert not names.match("{a}", "two")
    assert names.match("{c}{c}", "xx")
    assert not Names().match("{c}{c}", "xy")
    drawn = names.fill("{key}")
    assert names.match("{key}", drawn)
    assert Names().fill("{key}") != drawn


@pytest.mark.parametrize("text", ["GET /v1", "> GET /v1\n< 200\n<\n< id:1-1\n< data:1"])
def test_an_invalid_transcript_raises(text):
    with pytest.raises(TranscriptError):
        read(text)
