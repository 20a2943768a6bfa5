"""Evidence for a failure: the request as a curl command, and the response with the time of each part in milliseconds."""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby

from tidewire_conformance import specification
from tidewire_conformance.judging.verdict import Assertion, Verdict
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

MAX_WHOLE_BLOCKS = 12
"""Streams with at most this number of blocks are printed in full.

For a longer stream, only the blocks near the failing block are printed.
"""
BLOCKS_BEFORE, BLOCKS_AFTER = 4, 2
"""Number of blocks that are printed before and after the failing block.

If there is no failing block, the first and last `BLOCKS_BEFORE` blocks of the stream are printed.
"""
_MAX_CHARACTERS = 300
"""Maximum printed length of a block or body, in characters.

A longer text is shortened to its beginning, its end, and the JSON member that failed.
"""
_MEMBER_CONTEXT = 40, 100
"""Number of characters that are printed before and after the name of the failing JSON member."""
_NAME = re.compile("[A-Za-z_]{3,}")
_MAX_ARGUMENT_BYTES = 2000
"""Maximum size, in bytes, of a request body that is printed in a curl command. A longer body is replaced by `@BODY`."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters to escape: control characters except tab and line feed, Unicode's line separators and direction marks, and
lone surrogates, which cannot be written to a file."""
_IMPLIED_HEADERS = frozenset({"host", "content-length"})
"""Request headers that curl sets by itself, so reports omit them."""
_UNINTERESTING_HEADERS = frozenset({"date", "server", "connection", "transfer-encoding", "keep-alive"})
"""Response headers on which no requirement depends, so reports omit them."""
_CURL_GLOB_CHARACTERS = frozenset("[]{}")


def evidence(verdict: Verdict, assertion: Assertion) -> Iterator[str]:
    """Describe a failure in lines: the check, the expected and actual results, the transcript and a curl command."""
    yield f"check     {verdict.check}"
    yield f"about     {' '.join(verdict.about.split())}"
    yield f"expected  {visible(assertion.expected)}"
    if assertion.got:
        yield f"got       {visible(assertion.got)}"
    yield from map(visible, frames(assertion))
    if assertion.exchange is not None:
        yield curl(assertion.exchange)


def visible(text: str) -> str:
    """Escape control characters, because bytes from a server could otherwise move the cursor of the terminal."""
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def failure_text(verdict: Verdict, assertion: Assertion) -> str:
    """Describe a failure in one text, for pytest and JUnit reports. The text begins with the requirement."""
    text = specification.requirements()[assertion.requirement].text
    return "\n".join([f"{text} [{assertion.requirement}]", *evidence(verdict, assertion)])


def curl(exchange: RecordedExchange) -> str:
    """Build a curl command for bash that repeats a request.

    The command reads credentials from shell variables such as `$AUTHORIZATION`, so the report does not contain them.
    """
    words = ["curl", "-iN"]
    words += ["-g"] if _CURL_GLOB_CHARACTERS & {*exchange.url} else []
    words += ["--path-as-is"] if "/." in exchange.path else []
    words += _method(exchange)
    variables = dict(exchange.secrets)
    for name, value in exchange.request_headers:
        if value in variables:
            words.append(f'-H "{name}: ${variables[value]}"')
        elif name.lower() not in _IMPLIED_HEADERS:
            words.append(f"-H {shlex.quote(f'{name}: {value}' if value else f'{name};')}")
    words.append(shlex.quote(exchange.url))
    named = {name.lower() for name, _ in exchange.request_headers}
    if exchange.sent or "content-length" in named:
        # Without this option, curl would add a Content-Type header that the original request does not have.
        words += [] if "content-type" in named else ["-H 'Content-Type:'"]
        words.append(_data(exchange.sent))
    return exchange.without_secrets(" ".join(words))


def _method(exchange: RecordedExchange) -> list[str]:
    """Return the curl options that select the request method, or an empty list if curl uses the right method by
    default.
    """
    if exchange.method == "HEAD":
        return ["-I"]
    return [] if exchange.method == "GET" and not exchange.sent else ["-X", shlex.quote(exchange.method)]


def _data(body: bytes) -> str:
    """Return the curl option for a request body.

    The option for a binary body uses `printf`, because a command-line argument cannot contain NUL.
    """
    if len(body) > _MAX_ARGUMENT_BYTES:
        return f"--data-binary @BODY  # {len(body)} bytes, too long for a line"
    text = body.decode("utf-8", "backslashreplace")
    if text.encode() == body and (text.isprintable() or not text):
        # Do not use `--data-binary`, which would read a body that begins with @ as a file name.
        return f"--data-raw {shlex.quote(text)}"
    named = "".join(chr(b) if 32 <= b < 127 and b not in b"'\\%" else f"\\x{b:02x}" for b in body)
    return f"--data-binary @<(printf '{named}')"


def frames(assertion: Assertion) -> Iterator[str]:
    """Yield the lines of a transcript: the request, and the part of the response around the failing block.

    Each line begins with the time in milliseconds since the request.
    """
    if assertion.exchange is None:
        yield from assertion.transcript
    else:
        names = _NAME.findall(f"{assertion.got} {assertion.expected}")
        found = _frames(assertion.exchange, assertion.block, names)
        yield from map(assertion.exchange.without_secrets, found)


def _frames(exchange: RecordedExchange, marked: Block | None, names: Sequence[str]) -> Iterator[str]:
    yield f"  {'0.0':>8}  > {_shown(exchange, f'{exchange.method} {exchange.url}'.encode())}"
    variables = dict(exchange.secrets)
    for name, value in exchange.request_headers:
        if name.lower() not in _IMPLIED_HEADERS:
            shown = f"${variables[value]}" if value in variables else value
            yield f"  {'':>8}  > {_shown(exchange, f'{name}: {shown}'.encode())}"
    if exchange.sent:
        yield f"  {'':>8}  > {_shown(exchange, exchange.sent)}"
    if not exchange.status:
        yield f"  {_ms(exchange, exchange.finished)}  ! {exchange.fault}"
        return
    yield f"  {_ms(exchange, exchange.answered)}  < {exchange.status}"
    for name, value in exchange.header:
        # If the failure is in an event, the content type is the only relevant response header.
        if name.lower() not in _UNINTERESTING_HEADERS and (marked is None or name.lower() == "content-type"):
            yield f"  {'':>8}  < {_shown(exchange, f'{name}: {value}'.encode())}"
    if exchange.is_stream:
        yield from _blocks(exchange, marked, names)
        if exchange.reader.unfinished:
            yield f"  {'':>8}  < {_shown(exchange, exchange.reader.unfinished)} (unfinished)"
    elif exchange.body:
        yield f"  {_ms(exchange, exchange.finished)}  < {_shown(exchange, exchange.body, names)}"
    how = {"whole": "(end)", "cut": f"(cut: {exchange.fault})", "left": "(closed by the suite)"}
    yield f"  {_ms(exchange, exchange.finished)}  < {how.get(exchange.ended, '(open)')}"


def _blocks(exchange: RecordedExchange, marked: Block | None, names: Sequence[str]) -> Iterator[str]:
    blocks = exchange.blocks
    at = next((n for n, block in enumerate(blocks) if block is marked), None)
    if len(blocks) <= MAX_WHOLE_BLOCKS:
        shown = set(range(len(blocks)))
    elif at is None:
        shown = {*range(BLOCKS_BEFORE), *range(len(blocks) - BLOCKS_BEFORE, len(blocks))}
    else:
        shown = set(range(max(0, at - BLOCKS_BEFORE), min(len(blocks), at + BLOCKS_AFTER + 1)))
    for is_shown, numbers in groupby(range(len(blocks)), key=shown.__contains__):
        together = [blocks[number] for number in numbers]
        if not is_shown:
            yield f"  {'':>8}  < … {len(together)} blocks"
            continue
        for block in together:
            mark = "  ←" if block is marked else ""
            yield f"  {_ms(exchange, block.at)}  < {_shown(exchange, block.raw, names if mark else ())}{mark}"


def _ms(exchange: RecordedExchange, at: float) -> str:
    return f"{(at - exchange.began) * 1000:8.1f}"


def _shown(exchange: RecordedExchange, data: bytes, names: Sequence[str] = ()) -> str:
    """Return bytes as one line of text. A long text is shortened, but the failing member is kept.

    Args:
        exchange: Recorded exchange that contains the bytes.
        data: Bytes to print.
        names: Words from the descriptions of the expected and the actual result. The first word that is also the name
            of a JSON member in `data` identifies the failing member.
    """
    # Remove secrets before the text is shortened. Otherwise half a secret could remain in the report.
    text = exchange.without_secrets(data.decode("utf-8", "backslashreplace"))
    text = text.replace("\\", "\\\\") if "\r" in text else text
    text = text.replace("\r", "\\r").replace("\n", "\\n").replace("\ufeff", "\\ufeff")
    if len(text) <= _MAX_CHARACTERS:
        return text
    at = next((at for name in names if (at := text.find(f'"{name}":')) >= 0), -1)
    begin, end = _MAX_CHARACTERS // 2, len(text) - _MAX_CHARACTERS // 2
    since, until = max(at - _MEMBER_CONTEXT[0], begin), min(at + _MEMBER_CONTEXT[1], end)
    if at < 0 or until <= begin or since >= end:
        return f"{text[:begin]} … {text[end:]}"
    before, after = (" … " if left_out else "" for left_out in (since > begin, until < end))
    return f"{text[:begin]}{before}{text[since:until]}{after}{text[end:]}"
