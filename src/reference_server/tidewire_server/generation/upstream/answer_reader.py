"""Parser of an engine's streamed answer (`AnswerReader`). It does no I/O. It limits and validates all data from the engine.

An engine sends one JSON object (*chunk*) per event, and `[DONE]` after the last chunk. A chunk is not a token: it may contain
the text of several tokens, a part of a character, or no text at all.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
import orjson

from tidewire.protocol.sse import Decoder, Event, EventTooLargeError
from tidewire_server.generation.engine_interface import (
    Delta,
    EngineError,
    FinishReason,
    InputError,
    TokenUsage,
)
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.split_characters import CharacterJoiner
from tidewire_server.generation.stop_strings import StopStrings
from tidewire_server.generation.upstream.url_pool import UrlError
from tidewire_server.generation.vocabulary import Vocabulary

MAX_EVENT_BYTES: Final = 1 << 20
"""Maximum size of one event of an engine, in bytes."""
BYTES_PER_TOKEN: Final = 1 << 15
SPARE_TOKENS: Final = 64
"""Number of tokens by which an answer may exceed `max_tokens`. An answer may have `BYTES_PER_TOKEN` bytes for each token, which
also limits the numbers of its events and characters."""
MAX_REASON: Final = 300
"""Maximum number of characters of an engine's error message that are forwarded to the client."""
FINISH_REASONS: Final[dict[str, FinishReason | None]] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence"), "stop"),
    **dict.fromkeys(("length", "max_tokens"), "length"),
    **dict.fromkeys(("abort", "error", "cancelled")),
}
"""Finish reason of an engine → finish reason of the endpoint. None means that the engine has failed."""
NO_PROBABILITY: Final = -9999.0
"""Log-probability that vLLM sends instead of minus infinity."""
ROUNDING: Final = 1e-3
"""Tolerance for rounding errors. A log-probability may exceed 0, or the least probable alternative, by this amount."""

_TOO_LONG: Final = re.compile(
    "context (length|size|window)|context_length|maximum model length|too long|maximum input"
    "|`inputs` (tokens|must have less)",
    re.IGNORECASE,
)
"""Matches the error messages with which engines reject a prompt that is too long."""
_TOKEN_ID: Final = re.compile(r"token_id:([0-9]{1,9})")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class _Token(msgspec.Struct):
    token: str = ""
    id: TokenId | None = None
    logprob: float | None = None
    top_logprobs: list[_Token] = []


class _Logprobs(msgspec.Struct):
    """Log-probabilities in the form of chat completions (`content`), or in the form of completions (the other members)."""

    content: list[_Token] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _ChunkDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _ChunkDelta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Counts(msgspec.Struct):
    """Token counts: the first two are OpenAI's `usage`, the others the `timings` of llama.cpp. Some engines send null for 0."""

    prompt_tokens: Count | None = 0
    completion_tokens: Count | None = 0
    prompt_n: Count | None = 0
    cache_n: Count | None = 0
    predicted_n: Count | None = 0


class _StreamedBody(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Counts | None = None
    timings: _Counts | None = None
    error: Any = None


class AnswerReader:
    """Converts one answer to `Delta` blocks: rows with the requested columns, without stop strings.

    `base` contains the token counts of the text that the answer continues. Columns with token ids require the vocabulary. The
    function `hide` removes the key from a message of the engine.
    """

    def __init__(
        self,
        request: Generate,
        vocabulary: Vocabulary | None,
        max_tokens: int,
        base: TokenUsage | None = None,
        hide: Callable[[str], str] = str,
    ) -> None:
        self._request, self._base, self._hide = request, base, hide
        self._vocabulary = vocabulary or Vocabulary(())
        self._columns = request.columns
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._decoder = Decoder(max_event_bytes=MAX_EVENT_BYTES)
        self._bytes_left = BYTES_PER_TOKEN * (max_tokens + SPARE_TOKENS)
        self._text, self._reasoning = CharacterJoiner(), CharacterJoiner()
        self._stops = StopStrings(request.stops)
        self._rows = 0
        self._began = False
        """Whether the engine has sent a part of the answer."""
        self._before_text = False
        """Whether the model has sent reasoning, but no text yet."""
        self._usage: TokenUsage | None = None
        self.done = False
        """Whether the engine has sent `[DONE]`."""
        self.finish_reason: FinishReason | None = None
        """Reason why the answer has ended. Afterwards, only token counts are read."""

    def feed(self, data: bytes) -> Delta:
        """Add bytes of the answer. Return all rows that are now complete as one block, which may be empty.

        Raises:
            UrlError: The engine reports a failure.
            InputError: The engine rejects the input.
            EngineError: The engine failed, and another attempt would not help.
        """
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise EngineError("the engine sent many more bytes than tokens were requested")
        try:
            # If an engine splits a character between two events, their bytes are not UTF-8, and the decoder would replace
            # them. Therefore write each of these bytes as an escape of JSON, such as \udcc3.
            events = self._decoder.feed(self._utf8.decode(data).encode("utf-8", "backslashreplace"))
        except EventTooLargeError:
            raise EngineError(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes") from None
        delta = Delta()
        for event in events:
            if event.data == "[DONE]":
                self.done = True
                break
            if not event.data:
                continue
            ended = self.finish_reason is not None
            try:
                delta.extend(self._block(_decoded(event)))
            except (EngineError, InputError):
                if not ended:
                    raise
                self.done = True  # The text is complete, and only the token counts are missing.
                break
        return delta

    def end(self) -> Delta:
        """Return the last block. Raise a `UrlError` if the answer is not complete."""
        delta, most = Delta(usage=self._total()), self._request.max_tokens
        if self.finish_reason is None:
            if not (self.done and self._began):
                raise UrlError("ended an answer without a finish reason", began=True)
            delta.text_after = self._stops.flush()
            used = 0 if delta.usage is None else delta.usage.completion_tokens
            self.finish_reason = "length" if most is not None and used >= most else "stop"
        delta.finish_reason = self.finish_reason
        self._check_rows(spare=True)
        return delta

    def _block(self, chunk: _StreamedBody) -> Delta:
        if chunk.error is not None:
            status, message = status_of(chunk.error), self._hide(reason_of(chunk.error))
            if 400 <= status < 500 and status not in {408, 429}:
                raise rejection(status, f"rejected the request: {message}")
            if status in {429, 503} and not self._began:
                raise UrlError(f"is busy: {message}", "busy")
            raise UrlError(f"failed while it generated: {message}", began=True)
        delta = Delta()
        if (counts := chunk.usage or chunk.timings) is not None:
            prompt = (counts.prompt_tokens or 0) + (counts.prompt_n or 0) + (counts.cache_n or 0)
            completion = (counts.completion_tokens or 0) + (counts.predicted_n or 0)
            self._usage = TokenUsage(prompt, completion)
            delta.usage = self._total()
        if self.finish_reason is None and chunk.choices:
            self._add_choice(delta, chunk.choices)
        # Set no mark while text is held back. The counts include its tokens, so a new attempt would skip this text.
        if delta.usage is not None and not (self._stops.holds or self._text.holds or self._reasoning.holds):
            delta.mark = delta.usage, 0
        return delta

    def _add_choice(self, delta: Delta, choices: list[_Choice]) -> None:
        choice, *others = choices
        if others or choice.index != 0:
            raise EngineError("the engine sent several choices, although one was requested")
        self._began, sent = True, choice.delta or _ChunkDelta()
        if sent.tool_calls:
            raise EngineError("the model called a tool, which this endpoint does not support")
        if sent.refusal:
            raise EngineError("the model refused to answer, and sent no text")
        reasoning, content = sent.reasoning_content or sent.reasoning or "", choice.text or sent.content or ""
        delta.reasoning = self._reasoning.feed(reasoning)
        shown = self._stops.feed(self._text.feed(content))
        if self._stops.stopped:
            self.finish_reason = "stop"
        elif reason := choice.finish_reason:
            if reason not in FINISH_REASONS:
                raise EngineError(f"the engine ended the answer with the reason {reason[:80]!r}")
            self.finish_reason = FINISH_REASONS[reason]
            if self.finish_reason is None:
                raise UrlError(f"ended an answer with the reason {reason}", began=True)
            shown += self._stops.flush()
        tokens = [] if choice.logprobs is None else _tokens_of(choice.logprobs)
        self._rows += len(tokens)
        if len(self._columns) > 1 and (reasoning or self._before_text):
            tokens, self._before_text = self._tokens_of_text(tokens, content), not content
        if len(self._columns) == 1:
            delta.rows = [(shown,)] if shown else []
        elif tokens:
            # The text of a chunk belongs to all of its tokens. It is complete after the last token, whose row gets the text.
            texts = [""] * (len(tokens) - 1) + [shown]
            delta.rows = [self._row(text, token) for text, token in zip(texts, tokens, strict=True)]
            self._check_rows(spare=self.finish_reason is not None)
        elif content and not choice.finish_reason:
            raise EngineError("the engine sent no log-probabilities; request the text without them")
        else:
            delta.text_after = shown

    def _tokens_of_text(self, tokens: list[_Token], content: str) -> list[_Token]:
        """Return the last tokens of a chunk, which belong to its text. Earlier tokens belong to the reasoning."""
        ids = [self._id_of(token) for token in tokens]
        first = 0
        while first < len(ids) and len(self._vocabulary.text_of_all(ids[first + 1 :])) >= len(content):
            first += 1
        return tokens[first:]

    def _check_rows(self, *, spare: bool) -> None:
        """Check that the engine has sent log-probabilities for all tokens in its token counts. An end-of-text token needs none."""
        missing = (0 if self._usage is None else self._usage.completion_tokens) - self._rows
        if len(self._columns) > 1 and missing > spare and not self._stops.stopped:
            raise EngineError(
                f"the engine left out the log-probabilities of {missing} tokens, as llama.cpp does for a token that ends within "
                "a character; request the text without them"
            )

    def _total(self) -> TokenUsage | None:
        if self._usage is None or self._base is None:
            return self._usage
        generated = self._base.completion_tokens + self._usage.completion_tokens
        return TokenUsage(self._base.prompt_tokens, generated)

    def _row(self, text: str, token: _Token) -> tuple[Any, ...]:
        chosen = self._id_of(token)
        top = self._top(chosen, token) if "top_ids" in self._columns else []
        ids = [chosen, *(key for key, _ in top)]
        texts = [self._vocabulary.text_of(each) for each in ids] if "token_text" in self._columns else [""]
        values: dict[str, Any] = {
            "token_ids": chosen,
            "logprobs": self._rounded(token.logprob),
            "top_ids": ids[1:],
            "top_logprobs": [self._rounded(value) for _, value in top],
            "token_text": texts[0],
            "top_text": texts[1:],
        }
        return (text, *(orjson.dumps(values[name]) for name in self._columns[1:]))

    def _id_of(self, token: _Token) -> int:
        token_id = token.id
        if token_id is None:
            found = _TOKEN_ID.fullmatch(token.token)
            if found is None:
                # Do not look up the id of a token by its text, because two tokens can have the same text.
                raise EngineError("the engine sent log-probabilities without token ids")
            token_id = int(found[1])
        if token_id >= len(self._vocabulary):
            raise EngineError(f"the engine sent the token id {token_id}, which the tokenizer does not have")
        return token_id

    def _rounded(self, value: float | None) -> float | None:
        if value is None or value <= NO_PROBABILITY:
            return None
        if not value <= ROUNDING:
            raise EngineError(f"the engine sent the log-probability {value}, which is not below 0")
        return min(0.0, round(value, self._request.logprob_decimals)) + 0.0

    def _top(self, chosen: int, token: _Token) -> list[tuple[int, float]]:
        """Return the requested number of alternatives, ordered as the specification requires."""
        wanted = min(self._request.top_logprobs, len(self._vocabulary))
        known = {self._id_of(each): _bounded(each.logprob) for each in token.top_logprobs}
        if len(known) < max(wanted, len(token.top_logprobs)):
            raise EngineError(f"the engine sent {len(known)} alternatives, although {wanted} were requested")
        ordered = sorted(known.items(), key=lambda each: (-each[1], each[0]))[:wanted]
        # Detect alternatives that belong to another position, which some versions of engines send.
        least, own = ordered[-1][1], _bounded(token.logprob)
        if own > least + ROUNDING if chosen not in known else abs(own - known[chosen]) > ROUNDING:
            raise EngineError(
                "the engine sent alternatives that do not belong to the chosen token; request the text without them"
            )
        return ordered


def _bounded(value: float | None) -> float:
    return NO_PROBABILITY if value is None else max(value, NO_PROBABILITY)


def _decoded(event: Event) -> _StreamedBody:
    try:
        # Use Python's parser, which accepts incomplete characters in the form of surrogates.
        body = json.loads(event.data)
        if isinstance(body, dict) and (event.type == "error" or body.get("object") == "error"):
            # Some engines report an error without the member `error`, and then send `[DONE]`. Add the member, because the text
            # would otherwise be treated as complete.
            body = {"error": body.get("error") or body}
        return msgspec.convert(body, _StreamedBody)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise EngineError(f"the engine sent an invalid event ({type(error).__name__}: {error})") from None


def _tokens_of(logprobs: _Logprobs) -> list[_Token]:
    if logprobs.content is not None:
        return logprobs.content
    names, values = logprobs.tokens, logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [None] * len(names)
    if not len(names) == len(values) == len(tops):
        raise EngineError("the engine sent lists of log-probabilities with different lengths")
    return [
        _Token(name, None, value, [_Token(key, None, each) for key, each in (top or {}).items()])
        for name, value, top in zip(names, values, tops, strict=True)
    ]


def status_of(error: Any) -> int:
    """Return the HTTP status for an error in a stream, or 500 if the error does not indicate a status."""
    message = reason_of(error)
    # TGI reports every error in the stream. In its OpenAI API, the error always has the status 422.
    if message.startswith("Input validation error"):
        return 422
    if message == "Model is overloaded":
        return 429
    members = error if isinstance(error, dict) else {}
    code = str(members.get("code"))
    if re.fullmatch("[45][0-9][0-9]", code):
        return int(code)
    # In OpenAI's API, the code of an error is a name.
    if code == "rate_limit_exceeded":
        return 429
    return 400 if members.get("type") == "invalid_request_error" else 500


def rejection(status: int, message: str) -> EngineError | InputError:
    """Return the error for a request that an engine has rejected with a status and a message."""
    if status not in {400, 413, 422}:
        return EngineError(f"the engine {message}")
    too_long = status == 413 or _TOO_LONG.search(message) is not None
    return InputError(
        f"the engine {message}", member="", code="input_too_long" if too_long else "invalid_input"
    )


def reason_of(body: Any) -> str:
    """Return the message of an engine's error in one line. Engines send errors in several forms."""
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            body = body[name]
    text = body if isinstance(body, str) else json.dumps(body, default=str)
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"
