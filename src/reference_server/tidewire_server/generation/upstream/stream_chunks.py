"""Parser of the event streams of engines (`ChunkReader`). It has no I/O, and limits everything that an engine sends.

An engine sends a JSON object per event, and `[DONE]` after the last one. A chunk is not a token: it may have the text of
several tokens, a part of a character, or no text at all.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from tidewire.protocol.sse import Decoder, EventTooLargeError
from tidewire_server.generation.engine_interface import EngineError, TokenUsage

MAX_EVENT_BYTES: Final = 1 << 20
"""Maximum size of one event of an engine, in bytes."""
BYTES_PER_TOKEN: Final = 1 << 15
SPARE_TOKENS: Final = 64
"""An answer has at most `BYTES_PER_TOKEN` bytes for each of `max_tokens` + `SPARE_TOKENS` tokens, so the numbers of its events
and characters are limited, too."""
MAX_REASON: Final = 300
"""Maximum length of an engine's error message that is passed on, in characters."""

_TOKEN_ID: Final = re.compile(r"token_id:([0-9]{1,9})")
_HIGH_SURROGATE: Final = re.compile("[\ud800-\udbff]$")
_SURROGATES: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that are not bytes in the sense of the error handler `surrogateescape`."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class InvalidAnswerError(EngineError):
    """The engine sent something that this server does not pass on. Another attempt would not help."""


class LostAnswerError(EngineError):
    """The answer ended too early. Another attempt may help."""


class _Token(msgspec.Struct):
    token: str = ""
    id: TokenId | None = None
    logprob: float | None = None


class _Position(_Token):
    top_logprobs: list[_Token] = []


class _Logprobs(msgspec.Struct):
    """Log-probabilities in the form of chat completions (`content`), or in that of completions (the other members)."""

    content: list[_Position] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _ChunkDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _ChunkDelta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class _Timings(msgspec.Struct):
    predicted_n: Count = 0
    prompt_n: Count = 0
    cache_n: Count = 0


class _Body(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None


@dataclass(slots=True)
class ScoredToken:
    """A token with its log-probability, and with the most probable tokens at its position."""

    id: int
    logprob: float | None
    top: list[tuple[int, float | None]]


@dataclass(slots=True)
class Chunk:
    """Content of one event."""

    text: str = ""
    reasoning: str = ""
    scored: list[ScoredToken] | None = None
    finish_reason: str | None = None
    usage: TokenUsage | None = None


class CharacterJoiner:
    """Joins characters that an engine has split between two chunks, as bytes or as UTF-16 surrogates."""

    def __init__(self) -> None:
        self._pending = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._split = False

    def feed(self, text: str) -> str:
        """Add text, and return all complete characters."""
        if not self._split:
            try:
                text.encode()
            except UnicodeEncodeError:
                self._split = True
            else:
                return text
        text = (
            (self._pending + text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        )
        # `surrogatepass` leaves a surrogate without its other half, which may be in the next chunk.
        self._pending = text[-1:] if _HIGH_SURROGATE.search(text) else ""
        text = _SURROGATES.sub("\ufffd", text[: len(text) - len(self._pending)])
        return self._decoder.decode(text.encode("utf-8", "surrogateescape"))


class ChunkReader:
    """Parser of one answer.

    Args:
        max_tokens: Maximum number of tokens of the answer.

    Attributes:
        done: Whether the answer is complete.
    """

    def __init__(self, max_tokens: int) -> None:
        self._decoder = Decoder(max_event_bytes=2 * MAX_EVENT_BYTES)
        self._bytes_left = BYTES_PER_TOKEN * (max_tokens + SPARE_TOKENS)
        self._text, self._reasoning = CharacterJoiner(), CharacterJoiner()
        self.done = False

    def feed(self, data: bytes) -> list[Chunk]:
        """Add bytes of the answer, and return the chunks that they complete.

        Raises:
            InvalidAnswerError: The answer is invalid, or exceeds a limit.
            LostAnswerError: The engine reports that it has failed.
        """
        found = []
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise InvalidAnswerError("the engine sent many more bytes than tokens were requested")
        too_large = InvalidAnswerError(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes")
        try:
            # The decoder replaces bytes that are not UTF-8. An engine sends them if it splits a character between two
            # events, so each byte is passed as one character.
            events = self._decoder.feed(data if data.isascii() else data.decode("latin-1").encode())
        except EventTooLargeError:
            raise too_large from None
        for event in events:
            if len(event.data) > MAX_EVENT_BYTES:
                raise too_large
            if event.data == "[DONE]":
                self.done = True
                break
            found.append(self._chunk(_decoded(event.data.encode("latin-1"))))
        return found

    def _chunk(self, body: _Body) -> Chunk:
        if body.error is not None:
            raise error_of_body(body.error) or LostAnswerError(
                f"the engine failed while it generated: {reason_of(body.error)}"
            )
        chunk = Chunk()
        if body.usage is not None:
            chunk.usage = TokenUsage(body.usage.prompt_tokens, body.usage.completion_tokens)
        elif (timings := body.timings) is not None:
            chunk.usage = TokenUsage(timings.cache_n + timings.prompt_n, timings.predicted_n)
        for choice in body.choices:
            if choice.index != 0:
                raise InvalidAnswerError("the engine sent several choices, although one was requested")
            self._add(chunk, choice)
        return chunk

    def _add(self, chunk: Chunk, choice: _Choice) -> None:
        text, delta = choice.text, choice.delta
        if delta is not None:
            if delta.tool_calls:
                raise InvalidAnswerError("the model called a tool, which this endpoint does not support")
            text = text or delta.content
            if reasoning := delta.reasoning_content or delta.reasoning:
                chunk.reasoning += self._reasoning.feed(reasoning)
        if text:
            chunk.text += self._text.feed(text)
        if choice.logprobs is not None and (scored := _scored(choice.logprobs)):
            chunk.scored = (chunk.scored or []) + scored
        chunk.finish_reason = choice.finish_reason or chunk.finish_reason


def _decoded(data: bytes) -> _Body:
    try:
        return msgspec.json.decode(data, type=_Body)
    except msgspec.ValidationError as error:
        raise InvalidAnswerError(f"the engine sent an invalid event: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # Python's parser also reads parts of characters, as bytes and as surrogates.
        content = json.loads(data.decode("utf-8", "surrogateescape"))
        return msgspec.convert(content, _Body)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise InvalidAnswerError(f"the engine sent an invalid event ({type(error).__name__})") from None


def _scored(logprobs: _Logprobs) -> list[ScoredToken]:
    if logprobs.content is not None:
        return [
            ScoredToken(_id_of(each), each.logprob, [(_id_of(top), top.logprob) for top in each.top_logprobs])
            for each in logprobs.content
        ]
    tokens = logprobs.tokens or []
    values, tops = logprobs.token_logprobs or [], logprobs.top_logprobs or [None] * len(tokens)
    if not len(tokens) == len(values) == len(tops):
        raise InvalidAnswerError("the engine sent lists of log-probabilities with different lengths")
    return [
        ScoredToken(
            _id_of_text(token), value, [(_id_of_text(name), each) for name, each in (top or {}).items()]
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    ]


def _id_of(token: _Token) -> int:
    return _id_of_text(token.token) if token.id is None else token.id


def _id_of_text(token: str) -> int:
    found = _TOKEN_ID.fullmatch(token)
    if found is None:
        # Two tokens can have the same text, so an id is never looked up by its text.
        raise InvalidAnswerError("the engine sent log-probabilities without token ids")
    return int(found[1])


def error_of_body(error: Any) -> InvalidAnswerError | None:
    """Return the error for an error object in the stream that blames the request, or None if the engine itself failed."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500 and code not in {408, 429}:
        return InvalidAnswerError(f"the engine rejected the request: {reason_of(error)}")
    return None


def reason_of(body: Any) -> str:
    """Return the message of an error in one line, from the forms in which engines send it."""
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            body = body[name]
    text = body if isinstance(body, str) else json.dumps(body, default=str)
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"
