"""Reports of the suite: reproducible curl commands, recorded frames, and no secrets."""

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
import threading
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from rich.console import Console

from suite.test_grade import CHOICE, DrawnRun, report_of, verdict_with
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict
from tidewire_conformance.report import badge, failure_groups, html_report, junit_report, terminal_report
from tidewire_conformance.report.failure_evidence import curl, frames
from tidewire_conformance.wire.recording_client import IncompleteResponseError, Wire

TOKEN = "Bearer a-token-of-somebody"
STREAM = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@contextlib.contextmanager
def recording_server(answer=b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"):
    """A server that sends the same response to every request; yields its URL and the received requests."""
    received = []

    def serve(listener):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    received.append(request_of(connection))
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def request_of(connection):
    """Request line, header fields and body of one request."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if fields.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += connection.recv(65536)
        body = re.sub(rb"[0-9a-f]+\r\n(.*?)\r\n", rb"\1", body, flags=re.DOTALL)
    while len(body) < int(fields.get("content-length", 0)):
        body += connection.recv(65536)
    for name in ("user-agent", "accept", "content-length", "host"):
        # curl sends its own values for these fields, or derives them from the request.
        fields.pop(name, None) if fields.get(name) != "text/event-stream" else None
    return line, fields, body


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="no curl or bash")
@pytest.mark.parametrize(
    ("method", "place", "arguments"),
    [
        ("GET", "/v1/jobs/a/events?after=0-0&x=[1]{2}", {"header": {"Accept": "text/event-stream", "Last-Event-ID": ""}}),
        ("POST", "/v1/endpoints/it's/jobs", {"json": {"input": "it's\n\\ né 😀 $HOME `id`"}}),
        ("POST", "/v1/jobs/../x", {"body": b"\x00\xff'\\x41\x7f", "header": {"Content-Type": "text/plain"}}),
        ("POST", "/v1/jobs/a/cancel", {}),
        ("POST", "/v1/x", {"body": [b'{"input"', b":1}"], "header": {"Content-Type": "application/json"}}),
        ("POST", "/v1/x", {"body": b"@/etc/hostname"}),
        ("POST", "/v1/x", {"body": b"two\nlines 100%\n"}),
        ("DELETE", "/v1/jobs/a", {"header": {"Idempotency-Key": '"a b"'}}),
        ("OPTIONS", "/v1", {"header": {"Origin": "https://page.example"}}),
    ],
)  # fmt: skip
def test_the_curl_command_repeats_the_request(method, place, arguments):
    with recording_server() as (url, received):
        wire = Wire(url, header=[("Authorization", TOKEN)])
        exchange = asyncio.run(wire.request(method, place, **arguments))
        command = curl(exchange)
        assert TOKEN.partition(" ")[2] not in command
        environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "AUTHORIZATION": TOKEN}
        done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, timeout=30)
    assert done.returncode == 0, (command, done.stderr)
    assert received[1] == received[0], command


def report_of_failure(answer, place="/v1/jobs/a/events", **arguments):
    """A report with one failure whose record is a real exchange."""

    async def ask(url):
        wire = Wire(url, header=[("Authorization", TOKEN), ("X-Env", "test")])
        with contextlib.suppress(IncompleteResponseError):
            await wire.request("GET", place, **arguments)
        return wire.record[0]

    with recording_server(answer) as (url, _):
        exchange = asyncio.run(ask(url))
    block = exchange.blocks[-1] if exchange.blocks else None
    verdict = Verdict("area.check", (CHOICE[0],), "what it is about")
    verdict.assertions.append(Assertion(CHOICE[0], False, "this", "that", exchange, block))
    verdict.outcome = Outcome.FAIL
    return grade(DrawnRun([verdict]))


def terminal_output(report, width=100):
    screen = Console(width=width, highlight=False, no_color=True)
    with screen.capture() as capture:
        terminal_report.show(report, screen)
    return capture.get()


def test_no_report_contains_credentials(tmp_path):
    echo = f'HTTP/1.1 401 No\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{{"you sent": "{TOKEN}"}}'
    report = report_of_failure(echo.encode(), place=f"/v1/jobs/a?access_token={TOKEN.partition(' ')[2]}")
    for way, name in ((html_report, "r.html"), (junit_report, "r.xml"), (badge, "r.svg")):
        way.write(report, tmp_path / name)
    texts = [
        terminal_output(report),
        *((tmp_path / name).read_text() for name in ("r.html", "r.xml", "r.svg")),
    ]
    for text in texts:
        assert "a-token-of-somebody" not in text
    assert '{"you sent": "$AUTHORIZATION"}' in texts[0]
    assert 'X-Env: $X_ENV"' in texts[0]
    assert "read your credentials from $AUTHORIZATION and $X_ENV" in texts[0]


def test_frames_show_event_times_and_mark_the_failing_event():
    events = "".join(f"id:1-{number}\ndata:{number}\n\n" for number in range(1, 31))
    report = report_of_failure((STREAM + events + 'id:1-31\ndata:"cut').encode())
    (_, assertion) = report.failures[0].broken[0]
    lines = [*frames(assertion)]
    assert re.fullmatch(r"       0.0  > GET http://127.0.0.1:\d+/v1/jobs/a/events", lines[0])
    assert re.fullmatch(r" +\d+\.\d  < id:1-30\\ndata:30\\n\\n  ←", lines[-3])
    assert lines[-2].endswith('< id:1-31\\ndata:"cut (unfinished)')
    assert any(line.endswith("< … 25 blocks") for line in lines)


def test_a_long_request_line_or_header_is_abbreviated_except_in_the_command():
    report = report_of_failure(
        STREAM.encode().replace(b"\r\n\r\n", b"\r\nX-Long: " + b"9" * 5000 + b"\r\n\r\n", 1)
    )
    (_, assertion) = report.failures[0].broken[0]
    exchange = assertion.exchange
    exchange.url += "?after=1-" + "9" * 5000
    exchange.request_headers = (*exchange.request_headers, ("Last-Event-ID", "1-" + "9" * 5000))
    assert max(map(len, frames(assertion))) < 400
    assert len(curl(exchange)) > 10_000


def test_a_record_is_shown_once_and_abbreviated_in_the_middle():
    report = report_of_failure((STREAM + "".join(f"data:{number}\n\n" for number in range(40))).encode())
    verdict = report.run.verdicts[0]
    failures = verdict.assertions[0]
    verdict.requirements = (CHOICE[0], CHOICE[1])
    verdict.assertions[0] = Assertion(CHOICE[0], False, "this", "", failures.exchange)
    verdict.assertions.append(Assertion(CHOICE[1], False, "this, too", "", failures.exchange))
    text = terminal_output(grade(report.run))
    assert text.count("> GET http") == 1
    assert f"frames    shown above, under {CHOICE[0]}" in text
    assert re.search(r"< data:3\\n\\n\n +< … 32 blocks\n +\d+\.\d  < data:36\\n\\n", text)


@pytest.mark.parametrize("before", [150, 1000])
def test_a_long_body_is_abbreviated_around_the_reported_member(before):
    body = f'{{"a":"{"x" * before}","that":1.0,"b":"{"y" * 5000}"}}'
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    text = terminal_output(report_of_failure(f"{head}{body}".encode()))
    (line,) = [line for line in text.split("\n") if '< {"a"' in line]
    assert '"that":1.0,"b":"yyy' in line
    assert line.endswith('yyy"}')
    assert len(line) < 500


def test_abbreviation_leaves_no_part_of_a_secret():
    for place in range(100, 160):
        text = terminal_output(
            report_of_failure(f"{STREAM}data:{'x' * place}{TOKEN}{'y' * 5000}\n\n".encode())
        )
        assert "a-token" not in text
        assert "Bearer" not in text


def test_the_html_report_loads_nothing_and_escapes_server_data(tmp_path):
    markup = '</pre><script src="http://evil.example/x.js"></script><img src=x onerror=alert(1)>'
    report = report_of_failure(f"{STREAM}data:{markup}\n\n".encode())
    html_report.write(report, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))
    parser.feed(text)
    assert {"h1", "section", "pre", "details", "svg"} <= {tag for tag, _ in found}
    assert not {"script", "img", "link", "iframe", "object", "form"} & {tag for tag, _ in found}
    for _, attributes in found:
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_the_terminal_report_escapes_control_sequences():
    report = report_of_failure(f"{STREAM}data:\x1b[2J\x1b]0;owned\x07\n\n".encode())
    assert "\x1b" not in terminal_output(report)
    assert "data:\\x1b[2J\\x1b]0;owned\\x07" in terminal_output(report)


def test_junit_counts_match_and_any_bytes_are_valid(tmp_path):
    report = report_of_failure(f"{STREAM}data:\x00\x1b[31m\ufffe\n\n".encode())
    skipped = Verdict(
        "other.check", (CHOICE[1],), "x", Outcome.SKIPPED, "no occasion here", SkipReason.NO_OCCASION
    )
    unclear = Verdict("other.check2", (CHOICE[2],), "x", Outcome.INCONCLUSIVE, "it never came")
    report = report_of(*report.run.verdicts, skipped, unclear)
    junit_report.write(report, tmp_path / "r.xml")
    root = ET.parse(tmp_path / "r.xml").getroot()
    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["3", "1", "1", "1"]
    for suite in root:
        assert {
            "name",
            "tests",
            "failures",
            "errors",
            "skipped",
            "time",
            "timestamp",
            "hostname",
        } <= {*suite.keys()}
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(name)) == len([*suite.iter(tag)])
    assert root.find(".//failure").get("message") == f"{CHOICE[0]}: expected this, got that"
    assert root.find(".//error").get("message") == "inconclusive: it never came"
    assert root.find(".//skipped").get("message") == "no occasion: no occasion here"


def test_a_partial_run_is_marked_in_every_report(tmp_path):
    report = report_of(verdict_with("area.one", CHOICE[:1], (CHOICE[0], True)), part="1 of 9 checks")
    html_report.write(report, tmp_path / "r.html")
    assert "only a part of the suite was run: 1 of 9 checks" in terminal_output(report)
    assert "Only a part of the suite was run: 1 of 9 checks" in (tmp_path / "r.html").read_text()
    assert badge.summary(report) == ("part · 1/1", badge.GRAY)


def test_a_run_without_failures_says_how_many_requirements_were_not_tried():
    whole = verdict_with("area.one", CHOICE[:1], (CHOICE[0], True))
    untried = Verdict("area.two", (CHOICE[1],), "x", Outcome.SKIPPED, "too slow", SkipReason.UNTESTED)
    broken = verdict_with("area.three", (CHOICE[2],), (CHOICE[2], False))
    line = "nothing failed; 1 requirement was not tried, for the reasons below"
    assert line in terminal_output(report_of(whole, untried))
    assert "nothing failed" not in terminal_output(report_of(whole))
    assert "nothing failed" not in terminal_output(report_of(whole, untried, broken))


def test_a_run_without_a_profile_names_the_inconclusive_check_and_how_to_repeat_it():
    whole = verdict_with("area.one", CHOICE[:1], (CHOICE[0], True))
    unclear = Verdict("area.two", (CHOICE[1],), "x", Outcome.INCONCLUSIVE, "it never came")
    line = "no profile is met, because area.two could not reach a verdict, for the reason below; run the suite again with --only area.two --patience 3"
    assert line in " ".join(terminal_output(report_of(whole, unclear)).split())
    failed = verdict_with("area.three", (CHOICE[2],), (CHOICE[2], False))
    for report in (report_of(whole), report_of(whole, unclear, failed)):
        assert "could not reach a verdict" not in terminal_output(report)


# ---- grouping of failures with the same symptom --------------------------------------------------------------------


def broken(check, sentences, *failures, record=()):
    """A failed verdict. Each tuple in `failures` has the requirement, the expected and the received text."""
    verdict = Verdict(check, sentences, f"about {check}", Outcome.FAIL)
    verdict.assertions = [
        Assertion(name, False, expected, got, transcript=record) for name, expected, got in failures
    ]
    return verdict


def sections_of(text):
    """The output below each leading requirement, by requirement id."""
    return {part.partition("[")[2].partition("]")[0]: part for part in text.split("\nFAIL  ")[1:]}


def test_a_symptom_of_several_checks_is_shown_once():
    first, second, third, *_ = CHOICE
    report = report_of(
        broken("area.one", (first,), (first, "two", "one")),
        broken("area.two", (second,), (second, "two", "one")),
        broken("area.three", (third,), (third, "something else", "one")),
    )
    found = sections_of(terminal_output(report))
    assert len(found) == 2
    assert "same symptom in: area.two\n" in found[first]
    assert f"requirements with the same symptom: {second}\n" in found[first]
    assert "same symptom" not in found[third]
    assert "about area.two" not in terminal_output(report)


def test_a_failure_in_all_variants_is_shown_under_the_plain_scenario():
    usual, comments, once, *_ = CHOICE
    record = ("  > GET /", "  < 200")
    report = report_of(
        broken("comments.rollback", (comments, once), (comments, "a", "b"), (once, "a", "b"), record=record),
        broken("mark.rollback", (once,), (once, "a", "c"), record=record),
        broken("diffs.rollback", (usual, once), (usual, "a", "d"), (once, "e", "f"), record=record),
        verdict_with("comments.batch", (comments, once), (comments, True), (once, True)),
    )
    found = sections_of(terminal_output(report))
    assert [*found] == [usual]
    assert re.search(r"same symptom in: (comments|mark)\.rollback, (comments|mark)\.rollback\n", found[usual])
    assert f"requirements with the same symptom: {' '.join(sorted([comments, once]))}\n" in found[usual]


def test_specific_requirements_come_before_general_ones(tmp_path):
    general, special, known, *_ = CHOICE
    report = report_of(
        broken("area.one", (general, special), (general, "g", ""), (general, "h", ""), (special, "s", "")),
        broken("area.two", (known,), (known, "k", "")),
        *(verdict_with(f"area.more{number}", (general,), (general, True)) for number in range(5)),
        known={known: "so it is"},
    )
    html_report.write(report, tmp_path / "r.html")
    for text in (terminal_output(report), (tmp_path / "r.html").read_text()):
        failures = [text.index(f"{each}") for each in (special, general, known)]
        assert failures == sorted(failures)
    assert [*sections_of(terminal_output(report))] == [special, general]
    assert "listed in the baseline: so it is" in terminal_output(report)


@pytest.mark.parametrize(
    ("unsent", "expected", "got"),
    [
        ("TW-CLI-007", "event stream 2: 1-3", "no cursor"),
        ("TW-CLI-009", "number of event stream requests: at least 2 and at most 2", "1"),
    ],
)
def test_what_a_client_never_sends_comes_before_the_rules_about_it(unsent, expected, got):
    rules, record = ("TW-CLI-015", "TW-CLI-002"), ("  > GET /",)

    def ordered(*omissions):
        waits = [
            broken(f"waiting.{number}", rules, *((rule, *failure) for rule in rules), record=record)
            for number, failure in enumerate(omissions)
        ]
        cut = broken("cuts.one", ("TW-CLI-013", unsent), (unsent, expected, got), record=record)
        for verdict in (*waits, cut):
            verdict.unsent = unsent if any(each.got == got for each in verdict.broken) else ""
        return [each.requirement.id for each in failure_groups.ordered(report_of(*waits, cut))]

    late = ("event stream 2: at least 20 ms after the previous response", "3 ms")
    assert ordered(*[(expected, got)] * 3)[0] == unsent
    assert ordered(*[late] * 3)[0] == "TW-CLI-015", "one of four scenarios shows what is missing"


def placed(verdict, place, *sources, whole_run=False):
    """A failed verdict of a server check. Each source is a check whose response shows the failure."""
    verdict.place, verdict.whole_run = place, whole_run
    ((name, expected, got),) = {(each.requirement, each.expected, each.got) for each in verdict.assertions}
    verdict.assertions = [
        Assertion(name, False, expected, got, SimpleNamespace(check=source, number=1)) for source in sources
    ]
    return verdict


def test_the_failure_that_is_nearest_to_the_cause_comes_first():
    first, second, third, *_ = CHOICE
    few = placed(broken("all.rule", (first,), (first, "a", "")), 1, "late.one", whole_run=True)
    many = placed(broken("all.rule", (first,), (first, "a", "")), 1, *"abcdefgh", whole_run=True)
    late = placed(broken("late.one", (second,), (second, "b", "")), 3, "late.one")
    early = placed(broken("early.two", (third,), (third, "c", "")), 2, "early.two")
    for general, expected in ((many, [first, third, second]), (few, [third, second, first])):
        report = report_of(late, general, early)
        assert [each.requirement.id for each in failure_groups.ordered(report)] == expected
        assert failure_groups.fix_first(failure_groups.ordered(report)).startswith(f"Fix {expected[0]} first")


def test_each_link_of_the_html_report_has_a_target(tmp_path):
    first, second, *_ = CHOICE
    report = report_of(broken("area.one", (first, second), (first, "two", "one"), (second, "two", "one")))
    html_report.write(report, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert text.count(f'id="{second}"') == 1
    for name in re.findall(r'href="#([^"]+)"', text):
        assert text.count(f'id="{name}"') == 1


def test_long_lists_of_names_and_symptoms_are_abbreviated():
    first, *_ = CHOICE
    same = [
        broken(f"area.{number}", (first,), (first, "two", "one"))
        for number in range(failure_groups.MAX_NAMES + 5)
    ]
    text = terminal_output(report_of(*same))
    assert f"area.{failure_groups.MAX_NAMES} and 4 more" in " ".join(text.split())
    assert f"… and {failure_groups.MAX_NAMES + 4} more failures" in text
    different = [broken(f"area.{number}", (first,), (first, f"{number}", "")) for number in range(9)]
    text = terminal_output(report_of(*different))
    assert text.count("\n      check ") == failure_groups.MAX_SYMPTOMS
    assert "… and 7 more failures, with other symptoms in area.2, area.3" in text
