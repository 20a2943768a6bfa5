"""Engine in front of other engines that speak OpenAI's API (`UpstreamEngine`).

An answer that breaks off is continued after the text so far, or runs again:

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
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from tidewire_server.generation.check_schema_limits import check_schema
from tidewire_server.generation.engine_interface import (
    CORE_MEMBERS,
    Delta,
    EngineCapabilities,
    EngineClosedError,
    EngineLostError,
    EngineUnavailableError,
    InputError,
    LoggedTokens,
    Stats,
    TokenUsage,
    check_members,
)
from tidewire_server.generation.generate_input_and_value import MAX_TOP, Generate
from tidewire_server.generation.schema_limits import LimitCounts
from tidewire_server.generation.tokenizer_file import TokenizerFile
from tidewire_server.generation.upstream.engine_kinds import ENGINE_KINDS, EngineKind, members_of_kinds
from tidewire_server.generation.upstream.engine_requests import (
    BusyError,
    DownError,
    EngineDescription,
    EngineRequests,
    KeyRejectedError,
)
from tidewire_server.generation.upstream.output_rows import CatchUp, OutputRows
from tidewire_server.generation.upstream.request_body import can_continue_text, check_kind, request_body
from tidewire_server.generation.upstream.stream_chunks import ChunkReader, LostAnswerError
from tidewire_server.generation.upstream.url_pool import MisconfiguredError, UrlPool

_log = logging.getLogger(__name__)

MAX_LOST: Final = 3
"""Number of attempts after which a request whose answers broke off fails with `worker_lost`."""
MAX_WAIT: Final = 3600.0
"""Seconds for which a request waits for an engine, for example while all of them restart."""
MAX_TOKENS: Final = 1 << 20
"""Maximum of `max_tokens` if the context of the engine is not known."""
USAGE_SECONDS: Final = 2.0
"""Seconds for which the numbers of tokens may follow the finish reason or a stop string."""

CONTINUED = "the engine was lost while it generated; it continued after the text so far, and tokens at the seam may differ"
RAN_AGAIN = "the engine was lost while it generated; the request ran again from the start"

OnLoss = Literal["rerun", "fail", "continue"]


@dataclass
class _Progress:
    """What an item has written so far, in all attempts."""

    pieces: list[str] = field(default_factory=list)
    reasoning: str = ""
    usage: TokenUsage | None = None
    counted: int = 0
    """Number of code points at the beginning of the text to which `usage` applies."""
    length: int = 0
    lost: int = 0
    noted: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add(self, delta: Delta) -> None:
        if delta.replaces:
            self.pieces, self.reasoning, self.length = [], "", 0
        added = [*[row[0] for row in delta.rows], delta.text_after]
        self.pieces += added
        self.length += sum(map(len, added))
        self.reasoning += delta.reasoning
        if delta.usage is not None:
            self.usage, self.counted = delta.usage, self.length


class UpstreamEngine:
    """Engine whose requests run on other servers.

    Args:
        urls: Base URLs, such as `http://127.0.0.1:8001/v1`. All of them serve the same model.
        model: Name of the model. None selects the only model that the engines list.
        kind: Key of `ENGINE_KINDS`. None asks the engines.
        key: Bearer token for the engines.
        concurrency: Maximum number of requests that one URL processes at the same time.
        timeout: Number of seconds without a byte after which an engine counts as silent.
        tokenizer: Tokenizer of the model, which log-probabilities need.
        context: Maximum number of tokens of the prompt and the generated text together. None asks the engines.
        max_top: Maximum value of `top_logprobs`.
        on_loss: Treatment of answers that break off.
        max_wait: Number of seconds for which a request waits for an engine.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model: str | None = None,
        kind: str | None = None,
        key: str | None = None,
        concurrency: int = 64,
        timeout: float = 300.0,
        tokenizer: TokenizerFile | None = None,
        context: int | None = None,
        max_top: int = 20,
        on_loss: OnLoss = "continue",
        max_wait: float = MAX_WAIT,
    ) -> None:
        self._urls, self._model, self._key = list(urls), model, key
        self._concurrency, self._timeout, self._max_wait = concurrency, timeout, max_wait
        self._tokenizer, self._context, self._on_loss = tokenizer, context, on_loss
        self._fixed_kind = kind
        self._max_top = min(max_top, MAX_TOP)
        self._known: EngineDescription | None = None
        self._pool: UrlPool | None = None
        self._requests: EngineRequests | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = self._started_by_server = False
        self._started = self._generated_tokens = self._prompt_tokens = 0
        self.caps = self._capabilities(
            list(ENGINE_KINDS.values()) if kind is None else [ENGINE_KINDS[kind]], None
        )
        """Capabilities. Before an engine has answered, they contain what any kind of engine supports."""
        self.learned: Callable[[], None] = lambda: None
        """Function that is called when the capabilities are known."""

    def _capabilities(self, kinds: list[EngineKind], found: EngineDescription | None) -> EngineCapabilities:
        vocabulary = None if self._tokenizer is None else self._tokenizer.vocabulary
        members = members_of_kinds(kinds, vocabulary=vocabulary is not None, chat=found is None or found.chat)
        with_ids = any(kind.has_ids for kind in kinds)
        return EngineCapabilities(
            model=self._model or "the upstream's model",
            context=self._context or (None if found is None else found.context),
            max_top=self._max_top,
            concurrency=self._concurrency * len(self._urls),
            members=members,
            without=CORE_MEMBERS - members,
            vocabulary=vocabulary if with_ids else None,
            tokens=None if vocabulary is None else len(vocabulary),
            continues=True,
            counts_rows=False,
        )

    # ---- start and end -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to ask the engines. It does not wait for their answers."""
        self._started_by_server, self._closed = True, False
        self._begin()

    def unavailable(self) -> str | None:
        """Return why no engine can be used yet, or None."""
        if not self._started_by_server or self._pool is None or self._pool.unavailable is None:
            return None
        return f"the upstream cannot be used yet: {self._pool.unavailable}"

    def _begin(self) -> UrlPool:
        if self._closed:
            raise EngineClosedError("the engine was closed")
        loop = asyncio.get_running_loop()
        if self._pool is None or self._loop is not loop:
            self._loop = loop
            self._requests = EngineRequests(self._key, self._timeout)
            self._pool = UrlPool(self._urls, self._concurrency, self._probe)
        return self._pool

    async def _probe(self, url: str) -> None:
        assert self._requests is not None  # noqa: S101 - set together with the pool
        found = await self._requests.describe(url)
        if self._fixed_kind is not None:
            found = replace(found, kind=self._fixed_kind)
        if self._known is not None and found.kind != self._known.kind:
            raise MisconfiguredError(
                f"is an engine of the kind {found.kind}, but the upstream is of the kind {self._known.kind}; use "
                "--upstream-kind, or another server for this URL"
            )
        if self._model is None:
            if len(found.models) != 1:
                listed = ", ".join(name[:80] for name in found.models[:5]) or "none"
                raise MisconfiguredError(
                    f"does not list exactly one model ({listed}); choose one with --model"
                )
            self._model = found.models[0]
        elif found.models and self._model not in found.models and found.kind != "openai":
            listed = ", ".join(name[:80] for name in found.models[:5])
            raise MisconfiguredError(f"does not serve the model {self._model}, but {listed}; see --model")
        if self._known is None:
            self._known = found
            kind = ENGINE_KINDS[found.kind]
            self.caps = self._capabilities([kind], found)
            _log.info(
                "upstream: %s with the model %s, context %s", kind.title, self._model, self.caps.context
            )
            self.learned()

    async def close(self) -> None:
        """Close all connections. Requests that run end with an error."""
        self._closed = True
        pool, self._pool = self._pool, None
        requests, self._requests = self._requests, None
        if pool is not None and requests is not None and self._loop is asyncio.get_running_loop():
            await pool.close()
            await requests.close()

    async def stats(self) -> Stats:
        running, waiting = (0, 0) if self._pool is None else self._pool.counts
        return Stats(
            started=self._started,
            running=running,
            waiting=waiting,
            slots=self.caps.concurrency,
            steps=0,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
        )

    # ---- requests ------------------------------------------------------------------------------------------------

    async def check(self, request: Generate) -> None:
        """Validate a request; see `Engine.check`. Wait for the first answer of an engine, which decides what is valid."""
        kind = await self._kind()
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

    async def _kind(self) -> EngineKind:
        pool = self._begin()
        if self._known is None:
            try:
                async with asyncio.timeout(self._max_wait):
                    await pool.answered.wait()
            except TimeoutError:
                raise EngineUnavailableError(f"no engine has answered: {pool.unavailable}") from None
        assert self._known is not None  # noqa: S101 - set before the first answer is reported
        return ENGINE_KINDS[self._known.kind]

    def continues(self, request: Generate, logged: LoggedTokens) -> bool:
        """Return True: if the engine cannot continue, the request runs again, and only text that differs is replaced."""
        return True

    async def generate(self, request: Generate, logged: LoggedTokens | None = None) -> AsyncGenerator[Delta]:
        """Generate text; see `Engine.generate`. Another attempt follows if the answer breaks off."""
        kind = await self._kind()
        progress = _Progress()
        if logged is not None:
            progress = _Progress(
                [logged.text], logged.reasoning, logged.usage, logged.counted, len(logged.text)
            )
        self._started += 1
        waited = 0.0
        while True:
            pool = self._begin()
            begun = asyncio.get_running_loop().time()
            url = await pool.acquire(max(0.0, self._max_wait - waited))
            waited += asyncio.get_running_loop().time() - begun
            try:
                async with aclosing(self._attempt(url.url, kind, request, progress)) as deltas:
                    async for delta in deltas:
                        progress.add(delta)
                        yield delta
                break
            except BusyError as error:
                pool.report(url, "busy", "", error.wait)
            except KeyRejectedError as error:
                pool.report(url, "rejected", str(error))
            except LostAnswerError as error:
                pool.report(url, "failed", str(error))
                progress.lost += not isinstance(error, DownError) or error.began
                if progress.lost >= MAX_LOST or (progress.lost and self._on_loss == "fail"):
                    raise EngineLostError(
                        f"the engine was lost {progress.lost} times while it processed the request: {error}"
                    ) from None
            finally:
                pool.release(url)

    async def _attempt(
        self, url: str, kind: EngineKind, request: Generate, progress: _Progress
    ) -> AsyncGenerator[Delta]:
        """Send the request once, and yield the blocks that the endpoint writes."""
        continues = self._on_loss == "continue" and can_continue_text(
            request, kind, progress.usage, progress.reasoning
        )
        text = progress.text
        # Columns cannot be cut at a place in the text.
        continues &= len(request.columns) == 1 or progress.counted == len(text)
        began = bool(text or progress.reasoning)
        base = progress.usage if began and continues else None
        generated = 0 if base is None else base.completion_tokens
        most = request.max_tokens
        if most is not None and generated >= most:
            yield Delta(finish_reason="length", usage=base)
            return
        seam = 0 if base is None else progress.counted
        catch_up = None
        if began and (base is None or seam < len(text)):
            catch_up = CatchUp(text[seam:], progress.reasoning, text[:seam])
        if began and not progress.noted:
            progress.noted = True
            yield Delta(note=RAN_AGAIN if base is None else CONTINUED)
        path, body = request_body(
            request,
            kind,
            self._model or "",
            text=text[:seam],
            generated=generated,
            with_ids=len(request.columns) > 1,
        )
        rows = OutputRows(request, self.caps.vocabulary, base)
        async with aclosing(
            self._blocks(url, path, body, rows, (most or self.caps.context or MAX_TOKENS) - generated)
        ) as blocks:
            async for block in blocks:
                delta = block if catch_up is None else catch_up.feed(block)
                if delta is not None:
                    yield delta

    async def _blocks(
        self, url: str, path: str, body: dict[str, object], rows: OutputRows, max_tokens: int
    ) -> AsyncGenerator[Delta]:
        """Send a request, and yield the blocks of its answer. The last one has a finish reason."""
        assert self._requests is not None  # noqa: S101 - set together with the pool
        reader = ChunkReader(max_tokens)
        async with aclosing(self._requests.stream(url, path, body)) as stream:
            deadline = None
            while not reader.done:
                try:
                    async with asyncio.timeout_at(deadline):
                        data = await anext(stream, None)
                except (TimeoutError, DownError):
                    # A break after the finish reason loses at most the numbers of tokens.
                    if rows.finish_reason is None:
                        raise
                    break
                if data is None:
                    break
                if chunks := reader.feed(data):
                    block = Delta()
                    for chunk in chunks:
                        block.extend(rows.feed(chunk))
                    yield block
                if rows.finish_reason is not None and deadline is None:
                    deadline = asyncio.get_running_loop().time() + USAGE_SECONDS
        last = rows.end(done=reader.done)
        if last.usage is not None:
            self._prompt_tokens += last.usage.prompt_tokens
            self._generated_tokens += last.usage.completion_tokens
        yield last
