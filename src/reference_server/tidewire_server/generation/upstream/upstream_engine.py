"""Engine that forwards requests to other servers with OpenAI's API, called engines here (`UpstreamEngine`).

Each call of `generate` is one attempt. If the engine is busy or lost, the item returns to the queue of the endpoint. If the
answer broke off, `on_restart` determines the next attempt:

  `on_restart` | the engine can continue | next attempt
  -------------+-------------------------+-------------------------------------------------------------------------
  fail         | any                     | none: the item fails with `worker_lost`
  rerun        | any                     | runs again; text is replaced only from where it differs
  continue     | yes                     | prompt and text so far; `max_tokens` is reduced by the reported tokens
  continue     | no, or it refuses to    | runs again; text is replaced only from where it differs
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from tidewire_server.generation.check_schema_limits import check_schema
from tidewire_server.generation.engine_interface import (
    CORE_MEMBERS,
    Delta,
    EngineBusyError,
    EngineCapabilities,
    EngineError,
    EngineLostError,
    EngineUnavailableError,
    InputError,
    LoggedTokens,
    check_members,
)
from tidewire_server.generation.generate_input_and_value import MAX_TOP, Generate
from tidewire_server.generation.schema_limits import LimitCounts
from tidewire_server.generation.tokenizer_file import TokenizerFile
from tidewire_server.generation.upstream import engine_kinds
from tidewire_server.generation.upstream.answer_reader import AnswerReader
from tidewire_server.generation.upstream.engine_kinds import ENGINE_KINDS, EngineKind
from tidewire_server.generation.upstream.engine_requests import (
    EngineDescription,
    EngineRequests,
    NotFoundError,
)
from tidewire_server.generation.upstream.url_pool import UrlError, UrlPool

_log = logging.getLogger(__name__)

MAX_LOST: Final = 3
"""Number of attempts with an answer that broke off, after which a request fails with `worker_lost`."""
MAX_TOKENS: Final = 1 << 20
"""Maximum of `max_tokens` if the context length of the engine's model is not known."""
USAGE_SECONDS: Final = 2.0
"""Number of seconds to wait for the token counts after the finish reason or a stop string."""

CONTINUED = "the engine was lost while it generated; it continued after the text so far, and tokens at the seam may differ"
RAN_AGAIN = "the engine was lost while it generated; the request ran again from the start"


@dataclass(kw_only=True, eq=False)
class UpstreamEngine:
    """Engine whose requests run on other servers. The arguments are those of `add_upstream`."""

    urls: Sequence[str]
    model: str | None
    kind: str | None
    key: str | None
    concurrency: int
    timeout: float
    tokenizer: TokenizerFile | None
    context: int | None
    max_top: int
    on_loss: Literal["rerun", "fail", "continue"]
    learned: Callable[[], None] = lambda: None
    """Function that is called when the capabilities become known."""
    limit_calls: Callable[[int], None] = lambda _: None
    """Function that is called when the number of requests that all engines can process together changes."""
    caps: EngineCapabilities = field(init=False)
    """Capabilities of the upstream. Before an engine has answered, they contain all members that some kind of engine supports."""
    _known: EngineDescription | None = None
    _open: tuple[UrlPool, EngineRequests] | None = None

    def __post_init__(self) -> None:
        self._describe([*ENGINE_KINDS.values()] if self.kind is None else [ENGINE_KINDS[self.kind]])

    def _describe(self, kinds: list[EngineKind]) -> None:
        found = self._known
        vocabulary = None if self.tokenizer is None else self.tokenizer.vocabulary
        known, chat = vocabulary is not None, found is None or found.chat
        members = engine_kinds.members_of_kinds(kinds, vocabulary=known, chat=chat)
        self.caps = EngineCapabilities(
            model=self.model or "the upstream's model",
            context=self.context or (None if found is None else found.context),
            max_top=min(self.max_top, MAX_TOP),
            concurrency=self.concurrency * len(self.urls),
            members=members,
            without=CORE_MEMBERS - members,
            vocabulary=vocabulary if any(kind.with_ids is not None for kind in kinds) else None,
            tokens=None if vocabulary is None else len(vocabulary),
            continues=True,
            counts_rows=False,
        )

    async def start(self) -> None:
        """Start to ask the engines for their descriptions. This method does not wait for the answers."""
        requests = EngineRequests(self.key, self.timeout)
        probe = partial(self._probe, requests)
        self._open = UrlPool(self.urls, self.concurrency, probe, self.limit_calls), requests

    def unavailable(self) -> str | None:
        """Return the reason why no engine can be used yet, or None if one can be used."""
        reason = None if self._open is None else self._open[0].unavailable
        return reason and f"the upstream cannot be used yet: {reason}"

    async def _probe(self, requests: EngineRequests, url: str) -> None:
        """Ask an engine for its description, and keep the first one. Raise a `UrlError` if the engine takes no requests."""
        found = await requests.describe(url, self.kind, self.model)
        listed, problem = ", ".join(name[:80] for name in found.models[:5]) or "none", None
        if self._known is not None and found.kind != self._known.kind:
            problem = f"is of the kind {found.kind}, but the upstream of the kind {self._known.kind}; use --upstream-kind"
        elif self.model is None and len(found.models) != 1:
            problem = f"does not list exactly one model ({listed}); choose one with --model"
        elif found.models and found.kind != "openai" and self.model not in {None, *found.models}:
            problem = f"does not serve the model {self.model}, but {listed}; see --model"
        if problem is not None:
            raise UrlError(problem, "rejected")
        self.model = self.model or found.models[0]
        if self._known is None:
            self._known, kind = found, ENGINE_KINDS[found.kind]
            self._describe([kind])
            _log.info("upstream: %s with the model %s, context %s", kind.title, self.model, self.caps.context)
            self.learned()

    async def close(self) -> None:
        """Close all connections. Running requests end with an error."""
        opened, self._open = self._open, None
        for each in opened or ():
            await each.close()

    async def check(self, request: Generate) -> None:
        """Validate a request; see `Engine.check`. An engine must have answered before, because validity depends on its kind."""
        kind, _, _ = self._opened()
        check_members(request, self.caps)
        engine_kinds.check_kind(request, kind)
        if request.json_schema is not None:
            check_schema(request.json_schema, LimitCounts())
        tokens, most = request.max_tokens or 1, self.caps.context or MAX_TOKENS
        if self.caps.context is not None and self.tokenizer is not None and request.messages is None:
            tokens += await asyncio.to_thread(self.tokenizer.count, request.prompt)
        if tokens > most:
            reason = f"the prompt and max_tokens need {tokens} tokens or more, but the context of the model has {most}"
            raise InputError(reason, member="max_tokens", code="input_too_long")

    def _opened(self) -> tuple[EngineKind, UrlPool, EngineRequests]:
        if self._open is None or self._known is None:
            raise EngineUnavailableError(
                self.unavailable() or "the server in front of the engines is not running"
            )
        return ENGINE_KINDS[self._known.kind], *self._open

    def continues(self, request: Generate, logged: LoggedTokens) -> bool:
        """Return True. If an engine cannot continue, `generate` runs the request again, and only text that differs is replaced."""
        return True

    async def generate(self, request: Generate, logged: LoggedTokens | None = None) -> AsyncGenerator[Delta]:
        """Generate text; see `Engine.generate`. The first block is empty, and is yielded when an engine accepts the request."""
        kind, pool, requests = self._opened()
        try:
            with pool.request() as url:
                blocks = self._attempt(requests, url, kind, request, logged or LoggedTokens([], ""))
                try:
                    async with aclosing(blocks):
                        async for block in blocks:
                            yield block
                except NotFoundError:
                    # Check the engine's model. After a restart with another model, the engine refuses each request quickly. It
                    # would then get, and fail, most jobs.
                    await self._probe(requests, url)
                    raise
        except UrlError as error:
            request.lost_answers += error.began
            if request.lost_answers >= MAX_LOST or (error.began and self.on_loss == "fail"):
                raise EngineLostError(f"lost {request.lost_answers} answers: the engine {error}") from None
            raise EngineBusyError(f"the engine {error}") from None

    def _has_text_of_tokens(self, logged: LoggedTokens) -> bool:
        """Return whether the logged text is the whole text of the logged tokens, so that no part was held back."""
        if self.caps.vocabulary is None or not logged.token_ids:
            return logged.counted == len(logged.text)
        text = self.caps.vocabulary.text_of_all(logged.token_ids)
        # Some tokenizers begin a text with a space, which engines leave out.
        return logged.text in {text, text.removeprefix(" ")}

    async def _attempt(
        self, requests: EngineRequests, url: str, kind: EngineKind, request: Generate, logged: LoggedTokens
    ) -> AsyncGenerator[Delta]:
        """Send the request once, to continue the text of earlier attempts. Yield the blocks that the endpoint writes."""
        text, base, seam = logged.text, None, 0
        if text or logged.reasoning:
            continues = engine_kinds.can_continue_text(request, kind, logged.usage, logged.reasoning)
            # With several columns, continue only at the end of the text. The position of a mark in the other columns is unknown.
            at_end = len(request.columns) == 1 or self._has_text_of_tokens(logged)
            if self.on_loss == "continue" and continues and at_end:
                base, seam = logged.usage, logged.counted
            kept: list[Sequence[str]] = [(text[:seam],)] if base is not None and seam < len(text) else []
            replaces = base is None or seam < len(text)
            yield Delta(kept, note=RAN_AGAIN if base is None else CONTINUED, replaces=replaces)
        generated = 0 if base is None else base.completion_tokens
        most = request.max_tokens
        if most is not None and generated >= most:
            yield Delta(finish_reason="length", usage=base)
            return
        path, body = engine_kinds.request_body(
            request, kind, self.model or "", text=text[:seam], generated=generated
        )
        limit = (most or self.caps.context or MAX_TOKENS) - generated
        reader = AnswerReader(request, self.caps.vocabulary, limit, base, requests.hide)
        try:
            async with aclosing(requests.stream(url, path, body)) as stream:
                async for data in stream:
                    yield reader.feed(data)
                    if reader.done or reader.finish_reason is not None:
                        break
                # Ignore a failure after the finish reason, because it loses at most the token counts.
                with suppress(TimeoutError, EngineError):
                    async with asyncio.timeout(USAGE_SECONDS):
                        while not reader.done and (data := await anext(stream, b"")):
                            reader.feed(data)
        except InputError:
            if base is None:
                raise
            # The engine refuses to continue, for example because the text now has more tokens. Run the request again. Without
            # `usage`, `_attempt` does not continue the text.
            again = self._attempt(requests, url, kind, request, replace(logged, usage=None))
            async with aclosing(again):
                async for block in again:
                    yield block
        else:
            yield reader.end()
