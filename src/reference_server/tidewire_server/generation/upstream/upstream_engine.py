"""Engine in front of other engines that speak OpenAI's API (`UpstreamEngine`).

Each call of `generate` is one attempt. An item whose engine is busy or lost returns to the queue of the endpoint, and the next
attempt of a request whose answer broke off begins after its text so far:

  `on_restart` | the engine can continue | next attempt
  -------------+-------------------------+-------------------------------------------------------------------------
  fail         | any                     | none: the item fails with `worker_lost`
  rerun        | any                     | runs again; text is replaced only from where it differs
  continue     | yes                     | prompt and text so far; `max_tokens` is reduced by the reported tokens
  continue     | no                      | runs again; text is replaced only from where it differs
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Literal

from tidewire_server.generation.check_schema_limits import check_schema
from tidewire_server.generation.engine_interface import (
    CORE_MEMBERS,
    Delta,
    EngineBusyError,
    EngineCapabilities,
    EngineLostError,
    EngineUnavailableError,
    InputError,
    LoggedTokens,
    Stats,
    check_members,
)
from tidewire_server.generation.generate_input_and_value import MAX_TOP, Generate
from tidewire_server.generation.schema_limits import LimitCounts
from tidewire_server.generation.tokenizer_file import TokenizerFile
from tidewire_server.generation.upstream.answer_reader import AnswerReader
from tidewire_server.generation.upstream.engine_kinds import (
    ENGINE_KINDS,
    EngineKind,
    can_continue_text,
    check_kind,
    members_of_kinds,
    request_body,
)
from tidewire_server.generation.upstream.engine_requests import EngineDescription, EngineRequests
from tidewire_server.generation.upstream.url_pool import UrlError, UrlPool

_log = logging.getLogger(__name__)

MAX_LOST: Final = 3
"""Number of attempts after which a request whose answers broke off fails with `worker_lost`."""
MAX_TOKENS: Final = 1 << 20
"""Maximum of `max_tokens` if the context of the engine is not known."""
USAGE_SECONDS: Final = 2.0
"""Seconds for which the numbers of tokens may follow the finish reason or a stop string."""

CONTINUED = "the engine was lost while it generated; it continued after the text so far, and tokens at the seam may differ"
RAN_AGAIN = "the engine was lost while it generated; the request ran again from the start"


class UpstreamEngine:
    """Engine whose requests run on other servers. The arguments are those of `add_upstream`.

    Attributes:
        caps: Capabilities. Before an engine has answered, they contain what any kind of engine supports.
        learned: Function that is called when the capabilities are known.
        limit_calls: Function that is called with the number of requests that the engines process together, when it changes.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model: str | None,
        kind: str | None,
        key: str | None,
        concurrency: int,
        timeout: float,
        tokenizer: TokenizerFile | None,
        context: int | None,
        max_top: int,
        on_loss: Literal["rerun", "fail", "continue"],
    ) -> None:
        self._urls, self._model, self._fixed_kind, self._key = list(urls), model, kind, key
        self._concurrency, self._timeout, self._on_loss = concurrency, timeout, on_loss
        self._tokenizer, self._context, self._max_top = tokenizer, context, min(max_top, MAX_TOP)
        self._known: EngineDescription | None = None
        self._open: tuple[UrlPool, EngineRequests] | None = None
        self._started = self._generated_tokens = self._prompt_tokens = 0
        self.caps = self._capabilities([*ENGINE_KINDS.values()] if kind is None else [ENGINE_KINDS[kind]])
        self.learned: Callable[[], None] = lambda: None
        self.limit_calls: Callable[[int], None] = lambda _: None

    def _capabilities(self, kinds: list[EngineKind]) -> EngineCapabilities:
        found = self._known
        vocabulary = None if self._tokenizer is None else self._tokenizer.vocabulary
        members = members_of_kinds(kinds, vocabulary=vocabulary is not None, chat=found is None or found.chat)
        return EngineCapabilities(
            model=self._model or "the upstream's model",
            context=self._context or (None if found is None else found.context),
            max_top=self._max_top,
            concurrency=self._concurrency * len(self._urls),
            members=members,
            without=CORE_MEMBERS - members,
            vocabulary=vocabulary if any(kind.has_ids for kind in kinds) else None,
            tokens=None if vocabulary is None else len(vocabulary),
            continues=True,
            counts_rows=False,
        )

    # ---- start and end -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to ask the engines. It does not wait for their answers."""
        requests = EngineRequests(self._key, self._timeout)

        async def probe(url: str) -> None:
            self._learn(await requests.describe(url))

        self._open = UrlPool(self._urls, self._concurrency, probe, self.limit_calls), requests

    def unavailable(self) -> str | None:
        """Return why no engine can be used yet, or None."""
        reason = None if self._open is None else self._open[0].unavailable
        return reason and f"the upstream cannot be used yet: {reason}"

    def _learn(self, found: EngineDescription) -> None:
        """Check what an engine says about itself, and keep the first description.

        Raises:
            UrlError: Requests cannot be sent to this engine.
        """
        if self._fixed_kind is not None:
            found = replace(found, kind=self._fixed_kind)
        listed = ", ".join(name[:80] for name in found.models[:5]) or "none"
        if self._known is not None and found.kind != self._known.kind:
            raise UrlError(
                f"is an engine of the kind {found.kind}, but the upstream is of the kind {self._known.kind}; use "
                "--upstream-kind, or another server for this URL",
                "rejected",
            )
        if self._model is None and len(found.models) != 1:
            raise UrlError(f"does not list exactly one model ({listed}); choose one with --model", "rejected")
        self._model = self._model or found.models[0]
        if found.models and self._model not in found.models and found.kind != "openai":
            raise UrlError(f"does not serve the model {self._model}, but {listed}; see --model", "rejected")
        if self._known is None:
            self._known, kind = found, ENGINE_KINDS[found.kind]
            self.caps = self._capabilities([kind])
            _log.info(
                "upstream: %s with the model %s, context %s", kind.title, self._model, self.caps.context
            )
            self.learned()

    async def close(self) -> None:
        """Close all connections. Requests that run end with an error."""
        opened, self._open = self._open, None
        if opened is not None:
            for each in opened:
                await each.close()

    async def stats(self) -> Stats:
        running = 0 if self._open is None else self._open[0].running
        generated, slots = self._generated_tokens, self.caps.concurrency
        return Stats(self._started, running, 0, slots, 0, self._prompt_tokens, generated)

    # ---- requests ------------------------------------------------------------------------------------------------

    async def check(self, request: Generate) -> None:
        """Validate a request; see `Engine.check`. An engine must have answered, because its kind decides what is valid."""
        kind, _, _ = self._opened()
        check_members(request, self.caps)
        check_kind(request, kind)
        if request.json_schema is not None:
            check_schema(request.json_schema, LimitCounts())
        tokens, context = request.max_tokens or 1, self.caps.context
        if context is not None and self._tokenizer is not None and request.messages is None:
            tokens += await asyncio.to_thread(self._tokenizer.count, request.prompt)
        most = MAX_TOKENS if context is None else context
        if tokens > most:
            raise InputError(
                f"the prompt and max_tokens need at least {tokens} tokens, but the context of {self.caps.model} has {most}",
                member="max_tokens",
                code="input_too_long",
            )

    def _opened(self) -> tuple[EngineKind, UrlPool, EngineRequests]:
        if self._open is None or self._known is None:
            raise EngineUnavailableError(
                self.unavailable() or "the server in front of the engines does not run"
            )
        return ENGINE_KINDS[self._known.kind], *self._open

    def continues(self, request: Generate, logged: LoggedTokens) -> bool:
        """Return True: if the engine cannot continue, the request runs again, and only text that differs is replaced."""
        return True

    async def generate(self, request: Generate, logged: LoggedTokens | None = None) -> AsyncGenerator[Delta]:
        """Generate text; see `Engine.generate`. The first block is empty, and follows when an engine has accepted the request."""
        kind, pool, requests = self._opened()
        url = pool.take()
        self._started += 1
        try:
            blocks = self._attempt(requests, url.url, kind, request, logged or LoggedTokens([], ""))
            async with aclosing(blocks):
                async for block in blocks:
                    yield block
        except UrlError as error:
            pool.report(url, error)
            request.lost_answers += error.began
            if request.lost_answers >= MAX_LOST or (error.began and self._on_loss == "fail"):
                raise EngineLostError(
                    f"the engine was lost {request.lost_answers} times while it processed the request: it {error}"
                ) from None
            raise EngineBusyError(f"the engine {error}") from None
        finally:
            pool.release(url)

    async def _attempt(
        self, requests: EngineRequests, url: str, kind: EngineKind, request: Generate, logged: LoggedTokens
    ) -> AsyncGenerator[Delta]:
        """Send the request once, after the text of earlier attempts, and yield the blocks that the endpoint writes."""
        text, base, seam, catch_up = logged.text, None, 0, None
        if text or logged.reasoning:
            # Columns cannot be cut at a place in the text.
            at_end = len(request.columns) == 1 or logged.counted == len(text)
            if (
                at_end
                and self._on_loss == "continue"
                and can_continue_text(request, kind, logged.usage, logged.reasoning)
            ):
                base, seam = logged.usage, logged.counted
            if base is None or seam < len(text):
                catch_up = CatchUp(text[seam:], logged.reasoning, text[:seam])
            yield Delta(note=RAN_AGAIN if base is None else CONTINUED)
        generated = 0 if base is None else base.completion_tokens
        most = request.max_tokens
        if most is not None and generated >= most:
            yield Delta(finish_reason="length", usage=base)
            return
        path, body = request_body(request, kind, self._model or "", text=text[:seam], generated=generated)
        limit = (most or self.caps.context or MAX_TOKENS) - generated
        reader = AnswerReader(request, self.caps.vocabulary, limit, base)
        async with aclosing(requests.stream(url, path, body)) as stream:
            deadline = None
            while not reader.done:
                try:
                    async with asyncio.timeout_at(deadline):
                        data = await anext(stream, None)
                except (TimeoutError, UrlError):
                    # A break after the finish reason loses at most the numbers of tokens.
                    if reader.finish_reason is None:
                        raise
                    break
                if data is None:
                    break
                block = reader.feed(data)
                if catch_up is None or (block := catch_up.feed(block)) is not None:
                    yield block
                if reader.finish_reason is not None and deadline is None:
                    deadline = asyncio.get_running_loop().time() + USAGE_SECONDS
        last = reader.end()
        if last.usage is not None:
            self._prompt_tokens += last.usage.prompt_tokens
            self._generated_tokens += last.usage.completion_tokens
        yield last if catch_up is None else catch_up.feed(last) or last


class CatchUp:
    """Holds back the answer of a request that runs again, until it goes beyond the text of the lost answer or differs.

    Readers therefore see no change as long as the two are equal. The first block that is returned replaces everything.

    Args:
        text: Text of the lost answer that is generated again.
        reasoning: Its reasoning.
        kept: Text before it, after which the engine continues.
    """

    def __init__(self, text: str, reasoning: str, kept: str = "") -> None:
        self._old = (reasoning, text)
        self._found: Delta | None = Delta([(kept,)] if kept else [], replaces=True)
        self._new = ["", ""]

    def feed(self, delta: Delta) -> Delta | None:
        """Add a block, and return the block that the endpoint writes, or None if it is held back."""
        if self._found is None:
            return delta
        self._found.extend(delta)
        self._new[0] += delta.reasoning
        self._new[1] += "".join([row[0] for row in delta.rows]) + delta.text_after
        pairs = [*zip(self._old, self._new, strict=True)]
        held = all(old.startswith(new) for old, new in pairs) and any(old != new for old, new in pairs)
        if held and delta.finish_reason is None:
            return None
        found, self._found = self._found, None
        return found
