"""The proof of a failure: what was asked, as a line for a shell, and what came, byte by byte with its milliseconds."""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tidewire_conformance import specification
from tidewire_conformance.judging.verdict import Assertion, Verdict
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

WHOLE = 12
"""Blocks of a stream that are shown whole; of a longer one those around what is meant."""
BEFORE, AFTER = 4, 2
"""Blocks that are shown before and after the one that is meant, or from the start and to the end where none is."""
_BYTES = 300
"""Characters of a block or a body that are shown: from both ends, and around what is meant where that is known."""
_AROUND = 40, 100
"""Characters before and after the member that is meant."""
_NAME = re.compile("[A-Za-z_]{3,}")
_ARGUMENT = 2000
"""Bytes of a request's body that a command holds; a longer one is left for the suite to send again."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNSAID = frozenset({"host", "content-length"})
"""Fields of a request that go without saying."""
_USUAL = frozenset({"date", "server", "connection", "transfer-encoding", "keep-alive"})
"""Fields of an answer that nothing is said about."""
_GLOBBED = frozenset("[]{}")


def evidence(verdict: Verdict, assertion: Assertion) -> Iterator[str]:
    """One failure in lines: its check, what was expected and came, the frames, and a command that asks again."""
    yield f"check     {verdict.check}"
    yield f"about     {' '.join(verdict.about.split())}"
    yield f"expected  {visible(assertion.expected)}"
    if assertion.got:
        yield f"got       {visible(assertion.got)}"
    yield from map(visible, frames(assertion))
    if assertion.exchange is not None:
        yield curl(assertion.exchange)


def visible(text: str) -> str:
    """A text whose control characters are written out: what a server sends must not move a terminal's cursor."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def told(verdict: Verdict, assertion: Assertion) -> str:
    """One failure as a text by itself, its sentence first: what a build server or pytest shows."""
    text = specification.requirements()[assertion.requirement].text
    return "\n".join([f"{text} [{assertion.requirement}]", *evidence(verdict, assertion)])


def curl(exchange: RecordedExchange) -> str:
    """The request as a command for bash that sends the same again.

    Credentials are in no report: a command takes them from variables of the shell, such as `$AUTHORIZATION`.
    """
    words = ["curl", "-iN"]
    words += ["-g"] if _GLOBBED & {*exchange.url} else []
    words += ["--path-as-is"] if "/." in exchange.path else []
    words += _method(exchange)
    variables = dict(exchange.secrets)
    for name, value in exchange.request_headers:
        if value in variables:
            words.append(f'-H "{name}: ${variables[value]}"')
        elif name.lower() not in _UNSAID:
            words.append(f"-H {shlex.quote(f'{name}: {value}' if value else f'{name};')}")
    words.append(shlex.quote(exchange.url))
    said = {name.lower() for name, _ in exchange.request_headers}
    if exchange.sent or "content-length" in said:
        # Where nobody names a type, curl names one of its own.
        words += [] if "content-type" in said else ["-H 'Content-Type:'"]
        words.append(_data(exchange.sent))
    return exchange.without_secrets(" ".join(words))


def _method(exchange: RecordedExchange) -> list[str]:
    """How curl is told the method: by nothing, where it would choose the same."""
    if exchange.method == "HEAD":
        return ["-I"]
    return [] if exchange.method == "GET" and not exchange.sent else ["-X", shlex.quote(exchange.method)]


def _data(body: bytes) -> str:
    """The option for a body. What is no text comes through printf: no argument holds a NUL."""
    if len(body) > _ARGUMENT:
        return f"--data-binary @BODY  # {len(body)} bytes, too long for a line"
    text = body.decode("utf-8", "backslashreplace")
    if text.encode() == body and (text.isprintable() or not text):
        # Not `--data-binary`, which takes what begins with @ for the name of a file.
        return f"--data-raw {shlex.quote(text)}"
    said = "".join(chr(b) if 32 <= b < 127 and b not in b"'\\%" else f"\\x{b:02x}" for b in body)
    return f"--data-binary @<(printf '{said}')"


def frames(assertion: Assertion) -> Iterator[str]:
    """The answer around what is meant, with milliseconds from its request."""
    if assertion.exchange is None:
        yield from assertion.transcript
    else:
        names = _NAME.findall(f"{assertion.got} {assertion.expected}")
        found = _frames(assertion.exchange, assertion.block, names)
        yield from map(assertion.exchange.without_secrets, found)


def _frames(exchange: RecordedExchange, meant: Block | None, names: Sequence[str]) -> Iterator[str]:
    yield f"  {'0.0':>8}  > {exchange.method} {exchange.url}"
    variables = dict(exchange.secrets)
    for name, value in exchange.request_headers:
        if name.lower() not in _UNSAID:
            yield f"  {'':>8}  > {name}: {f'${variables[value]}' if value in variables else value}"
    if exchange.sent:
        yield f"  {'':>8}  > {_shown(exchange, exchange.sent)}"
    if not exchange.status:
        yield f"  {_ms(exchange, exchange.finished)}  ! {exchange.fault}"
        return
    yield f"  {_ms(exchange, exchange.answered)}  < {exchange.status}"
    for name, value in exchange.header:
        # Where an event is meant, the header is not what matters.
        if name.lower() not in _USUAL and (meant is None or name.lower() == "content-type"):
            yield f"  {'':>8}  < {name}: {value}"
    if exchange.is_stream:
        yield from _blocks(exchange, meant, names)
        if exchange.reader.unfinished:
            yield f"  {'':>8}  < {_shown(exchange, exchange.reader.unfinished)} (unfinished)"
    elif exchange.body:
        yield f"  {_ms(exchange, exchange.finished)}  < {_shown(exchange, exchange.body, names)}"
    how = {"whole": "(end)", "cut": f"(cut: {exchange.fault})", "left": "(left by the suite)"}
    yield f"  {_ms(exchange, exchange.finished)}  < {how.get(exchange.ended, '(open)')}"


def _blocks(exchange: RecordedExchange, meant: Block | None, names: Sequence[str]) -> Iterator[str]:
    blocks = exchange.blocks
    at = next((n for n, block in enumerate(blocks) if block is meant), None)
    if len(blocks) <= WHOLE:
        shown = set(range(len(blocks)))
    elif at is None:
        shown = {*range(BEFORE), *range(len(blocks) - BEFORE, len(blocks))}
    else:
        shown = set(range(max(0, at - BEFORE), min(len(blocks), at + AFTER + 1)))
    left_out = 0
    for number, block in enumerate(blocks):
        if number not in shown:
            left_out += 1
            continue
        if left_out:
            yield f"  {'':>8}  < … {left_out} blocks"
            left_out = 0
        mark = "  ←" if block is meant else ""
        yield f"  {_ms(exchange, block.at)}  < {_shown(exchange, block.raw, names if mark else ())}{mark}"
    if left_out:
        yield f"  {'':>8}  < … {left_out} blocks"


def _ms(exchange: RecordedExchange, at: float) -> str:
    return f"{(at - exchange.began) * 1000:8.1f}"


def _shown(exchange: RecordedExchange, data: bytes, names: Sequence[str] = ()) -> str:
    """Bytes in a line, of which the middle is left out where they are many, but not the member that is spoken of.

    Args:
        exchange: Where they were said.
        data: The bytes.
        names: Words of what was expected and came: the first that is a member there is taken to be what is meant.
    """
    # Before it is cut: half a secret is one as well.
    text = exchange.without_secrets(data.decode("utf-8", "backslashreplace"))
    text = text.replace("\\", "\\\\") if "\r" in text else text
    text = text.replace("\r", "\\r").replace("\n", "\\n").replace("\ufeff", "\\ufeff")
    if len(text) <= _BYTES:
        return text
    at = next((at for name in names if (at := text.find(f'"{name}":')) >= 0), -1)
    begin, end = _BYTES // 2, len(text) - _BYTES // 2
    since, until = at - _AROUND[0], at + _AROUND[1]
    if at < 0 or until <= begin or since >= end:
        return f"{text[:begin]} … {text[end:]}"
    parts = [(0, begin), (max(since, begin), min(until, end)), (end, len(text))]
    told = text[:begin]
    for (_, before), (start, stop) in pairwise(parts):
        told += (" … " if start > before else "") + text[start:stop]
    return told
