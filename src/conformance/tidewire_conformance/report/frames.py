"""The proof of a failure: what was asked, as a line for a shell, and what came, byte by byte with its milliseconds."""

import shlex
from collections.abc import Iterator

from tidewire_conformance.event_stream import Block
from tidewire_conformance.verdict import Assertion
from tidewire_conformance.wire import Exchange

BEFORE, AFTER = 3, 2
"""Blocks of a stream that are shown before and after the one that is meant."""
_BYTES = 300
"""Bytes of a block or a body that are shown."""
_HIDDEN = {"authorization", "cookie"}
_UNSAID = {"host", "content-length", "transfer-encoding"}


def curl(exchange: Exchange) -> str:
    """The request as a command; credentials are left for the reader to fill in."""
    words = ["curl", "-iN", "-X", exchange.method]
    for name, value in exchange.asked:
        if name.lower() not in _UNSAID:
            words += ["-H", f"{name}: {'…' if name.lower() in _HIDDEN else value}"]
    if exchange.sent:
        words += ["--data-binary", _shown(exchange.sent)]
    return shlex.join([*words, exchange.url])


def frames(assertion: Assertion) -> Iterator[str]:
    """The answer around what is meant, with milliseconds from its request."""
    exchange = assertion.exchange
    if exchange is None:
        yield from assertion.told
        return
    yield f"  {'0.0':>8}  > {exchange.method} {exchange.url}"
    if not exchange.status:
        yield f"  {'':>8}  ! {exchange.fault}"
        return
    yield f"  {_ms(exchange, exchange.answered)}  < {exchange.status}"
    for name, value in exchange.header:
        if name.lower() not in {"date", "server", "connection"}:
            yield f"  {'':>8}  < {name}: {value}"
    if exchange.is_stream:
        yield from _blocks(exchange, assertion.block)
    elif exchange.body:
        yield f"  {_ms(exchange, exchange.finished)}  < {_shown(exchange.body)}"
    how = {"whole": "(end)", "cut": f"(cut: {exchange.fault})", "left": "(left by the suite)"}
    yield f"  {_ms(exchange, exchange.finished)}  < {how.get(exchange.ended, '(open)')}"


def _blocks(exchange: Exchange, meant: Block | None) -> Iterator[str]:
    blocks = exchange.blocks
    at = next((n for n, block in enumerate(blocks) if block is meant), len(blocks) - 1)
    first, last = max(0, at - BEFORE), min(len(blocks), at + AFTER + 1)
    if first:
        yield f"  {'':>8}  < … {first} blocks"
    for block in blocks[first:last]:
        mark = "←" if block is meant else ""
        yield f"  {_ms(exchange, block.at)}  < {_shown(block.raw)} {mark}".rstrip()
    if last < len(blocks):
        yield f"  {'':>8}  < … {len(blocks) - last} blocks"


def _ms(exchange: Exchange, at: float) -> str:
    return f"{(at - exchange.began) * 1000:8.1f}"


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    text = text.replace("\\", "\\\\") if "\r" in text else text
    text = text.replace("\r", "\\r").replace("\n", "\\n").replace("\ufeff", "\\ufeff")
    return text if len(text) <= _BYTES else f"{text[: _BYTES // 2]} … {text[-_BYTES // 2 :]}"
