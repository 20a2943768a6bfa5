"""The engine: a thread that plans a step, runs it, and hands its tokens to the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import jinja2
import torch

from tidewire_server.generation.engine import (
    Delta,
    EngineCapabilities,
    EngineClosedError,
    EngineError,
    EngineFullError,
    FinishReason,
    InputError,
    Stats,
    check_members,
)
from tidewire_server.generation.generate_input_and_value import MAX_TOP, MIN_TEMPERATURE, Generate
from tidewire_server.generation.torch_engine.delta_queue import DeltaQueue
from tidewire_server.generation.torch_engine.detokenizer import TextStream
from tidewire_server.generation.torch_engine.kv_cache import KVCache
from tidewire_server.generation.torch_engine.load_checkpoint import Checkpoint, LoadError, load
from tidewire_server.generation.torch_engine.sampler import Sampling
from tidewire_server.generation.torch_engine.step_runner import Runner, RunningSequence, Sampled
from tidewire_server.generation.torch_engine.step_scheduler import StepPlan, StepScheduler

logger = logging.getLogger(__name__)

SERVED = frozenset({"min_p", "logprobs", "top_logprobs", "ranks", "token_text"})
"""Members of the input that this engine serves beyond the core; `messages` where the model has a chat template."""

SPARE_TOKENS = 8
"""More than any tokenizer adds to a text by itself (a beginning of text, a prefix space)."""


@dataclass(eq=False, kw_only=True)
class Request(RunningSequence):
    """A request in the engine."""

    asked: Generate
    text: TextStream
    loop: asyncio.AbstractEventLoop
    deltas: DeltaQueue = field(default_factory=DeltaQueue)


class TorchEngine:
    """Generates with a Hugging Face checkpoint; many requests share one batch.

    Args:
        checkpoint: the model.
        slots: requests that run at a time.
        max_waiting: requests that wait for a slot at most; more are refused.
        step_tokens: tokens that one forward pass reads at most.
        max_top: the largest `top_logprobs`; never more than `MAX_TOP`.
        max_cache_bytes: of the key-value cache; where the model's context does not fit, it is shortened.

    Raises:
        LoadError: not even a short context fits `max_cache_bytes`.
    """

    MIN_CONTEXT = 16

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        slots: int = 16,
        max_waiting: int = 256,
        step_tokens: int = 2048,
        max_top: int = 20,
        max_cache_bytes: int = 4 << 30,
    ) -> None:
        c = checkpoint
        per_slot = slots * KVCache.bytes_per_position(c.layers, c.kv_heads, c.head_size, c.dtype)
        context = min(c.context, max_cache_bytes // per_slot - 1)
        if context < min(self.MIN_CONTEXT, c.context):
            raise LoadError(
                f"{slots} slots of {self.MIN_CONTEXT} tokens need {per_slot * (self.MIN_CONTEXT + 1)} bytes of cache, "
                f"more than max_cache_bytes ({max_cache_bytes}): allow more, or fewer slots"
            )
        if context < c.context:
            logger.warning("context shortened from %d to %d tokens to fit the cache", c.context, context)
        self._checkpoint = checkpoint
        self._scheduler: StepScheduler[Request] = StepScheduler(slots, step_tokens)
        self._runner = Runner(
            c, KVCache(c.layers, slots, c.kv_heads, context, c.head_size, c.dtype, c.device)
        )
        self._caps = EngineCapabilities(
            model=c.name,
            context=context,
            max_top=min(max_top, MAX_TOP, c.vocab_size),
            concurrency=slots,
            members=SERVED | ({"messages"} if getattr(c.tokenizer, "chat_template", None) else set()),
            vocabulary=c.vocabulary,
        )
        # Where no normalizer makes a text longer, a token is at least a byte, and most prompts can be judged by size.
        self._byte_per_token = c.tokenizer.backend_tokenizer.normalizer is None
        self._wake = threading.Condition()
        # Under the condition's lock, as the scheduler is:
        self._arrivals: deque[Request] = deque()
        self._max_open = slots + max_waiting
        self._closing = False
        self._started = 0
        # Written by the engine's thread only:
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        # Started with the first request: an engine that serves none can be dropped without `close`.
        self._thread = threading.Thread(target=self._work, name="tidewire-engine", daemon=True)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        slots: int = 16,
        max_waiting: int = 256,
        max_top: int = 20,
    ) -> Self:
        """Load a checkpoint and start its engine.

        Args:
            folder: a local Hugging Face checkpoint.
            device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
            dtype: `auto`, `float32`, `bfloat16` or `float16`.
            threads: CPU threads of torch; None leaves its own choice.
            slots: requests that run at a time.
            max_waiting: requests that wait for a slot at most.
            max_top: the largest `top_logprobs`.

        Raises:
            LoadError: the checkpoint cannot be served.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        return cls(
            load(folder, device=device, dtype=dtype), slots=slots, max_waiting=max_waiting, max_top=max_top
        )

    @property
    def caps(self) -> EngineCapabilities:
        return self._caps

    async def check(self, request: Generate) -> None:
        """Refuse what this engine cannot serve.

        Raises:
            InputError: naming the member.
        """
        check_members(request, self._caps)
        size = len(request.prompt.encode()) if request.messages is None and self._byte_per_token else 0
        if not 0 < size <= self._caps.context - request.max_tokens - SPARE_TOKENS:
            await asyncio.to_thread(self._read_prompt, request)

    async def generate(self, request: Generate) -> AsyncGenerator[Delta]:
        """Generate; see `Engine`. Blocks that the reader does not take in time are merged."""
        check_members(request, self._caps)
        prompt = await asyncio.to_thread(self._read_prompt, request)
        job = Request(
            prompt=prompt,
            sampling=_sampling_of(request),
            scored=request.logprobs or request.top_logprobs > 0 or request.ranks,
            top=request.top_logprobs,
            asked=request,
            text=TextStream(self._checkpoint.vocabulary, request.stops),
            loop=asyncio.get_running_loop(),
        )
        self._submit(job)
        try:
            while True:
                delta = await job.deltas.take()
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            with self._wake:
                job.cancelled = True
                self._wake.notify()

    async def stats(self) -> Stats:
        with self._wake:
            return Stats(
                started=self._started,
                running=self._scheduler.running,
                waiting=self._scheduler.waiting + len(self._arrivals),
                slots=self._scheduler.slots,
                steps=self._steps,
                prompt_tokens=self._prompt_tokens,
                generated_tokens=self._generated_tokens,
            )

    async def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
            begun = self._thread.ident is not None
        if begun:
            await asyncio.to_thread(self._thread.join)

    def _read_prompt(self, request: Generate) -> list[int]:
        """The prompt's tokens.

        Raises:
            InputError: there are none, or they and `max_tokens` do not fit the context.
        """
        tokenizer = self._checkpoint.tokenizer
        member = "prompt" if request.messages is None else "messages"
        if request.messages is None:
            text, add_special = request.prompt, True
            self._check_size(text)
        else:
            turns = [message.model_dump() for message in request.messages]
            try:
                text = str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
            except jinja2.TemplateError as error:
                raise InputError(
                    f"messages do not suit the model's chat template: {error}", member=member
                ) from error
            add_special = False
        # The tokenizer's wrapper keeps settings between calls and is not safe in threads; its backend is.
        ids: list[int] = tokenizer.backend_tokenizer.encode(text, add_special_tokens=add_special).ids
        context = self._caps.context
        if not ids:
            raise InputError(
                f"{member} is empty: the model needs at least one token to continue", member=member
            )
        if len(ids) >= context:
            raise InputError(
                f"{member} has {len(ids)} tokens, which leaves no room in the context of {context}",
                member=member,
                code="input_too_long",
            )
        if len(ids) + request.max_tokens > context:
            raise InputError(
                f"max_tokens is {request.max_tokens}, but after the {len(ids)} tokens of {member} "
                f"the context of {context} has room for {context - len(ids)}",
                member="max_tokens",
                code="input_too_long",
            )
        return ids

    def _check_size(self, text: str) -> None:
        """Refuse what is too long by any count, before a tokenizer spends time on it."""
        size = len(text.encode())
        fewest = size // self._checkpoint.vocabulary.longest
        if fewest > self._caps.context:
            raise InputError(
                f"prompt has {size} bytes, which is at least {fewest} tokens; the context is {self._caps.context} tokens",
                member="prompt",
                code="input_too_long",
            )

    def _submit(self, job: Request) -> None:
        with self._wake:
            if self._closing:
                raise EngineClosedError("the engine was closed")
            taken = len(self._arrivals) + self._scheduler.waiting + self._scheduler.running
            if taken >= self._max_open:
                raise EngineFullError(
                    f"{taken} requests run or wait, which is the most that the engine keeps"
                )
            if self._thread.ident is None:
                self._thread.start()
            self._started += 1
            self._arrivals.append(job)
            self._wake.notify()

    # What follows runs on the engine's thread.

    def _work(self) -> None:
        scheduler = self._scheduler
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closing or self._arrivals or scheduler.running or scheduler.waiting
                )
                if self._closing:
                    left = [*scheduler.clear(), *self._arrivals]
                    break
                while self._arrivals:
                    scheduler.add(self._arrivals.popleft())
                step = scheduler.plan()
            if step:
                self._run(step)
        _deliver([(job, EngineClosedError("the engine was closed")) for job in left])

    def _run(self, step: StepPlan[Request]) -> None:
        """Schedule is done: run, then postprocess. A step that fails fails its requests, and no others."""
        try:
            sampled = self._runner.run(step)
            with self._wake:
                self._scheduler.done(step, [s.token for s in sampled])
                self._steps += 1
                self._prompt_tokens += sum(part.end - part.start for part in step.prefill)
                self._generated_tokens += len(sampled)
            news: list[tuple[Request, Delta | EngineError]] = [
                (job, self._delta(job, s)) for job, s in zip(step.sampled, sampled, strict=True)
            ]
        except Exception as error:
            jobs = [*step.decode, *(part.sequence for part in step.prefill)]
            logger.exception("a step of %d requests failed", len(jobs))
            text = f"the engine failed in a step of {len(jobs)} requests ({type(error).__name__}); its log says why"
            news = [(job, EngineError(text)) for job in jobs]
        with self._wake:
            for job, result in news:
                if isinstance(result, EngineError) or result.finish_reason is not None:
                    self._scheduler.finish(job)
        _deliver(news)

    def _delta(self, job: Request, sampled: Sampled) -> Delta | EngineError:
        """One token as its reader sees it."""
        if not sampled.is_number:
            return EngineError("the model computed no probabilities for the next token (NaN or infinity)")
        asked = job.asked
        text = job.text.feed(sampled.token)
        finish: FinishReason | None = None
        if sampled.token in self._checkpoint.end_ids or job.text.stopped:
            finish = "stop"
        elif job.generated == asked.max_tokens:
            finish = "length"
        if finish is not None:
            text += job.text.flush()
        delta = Delta(text=[text], finish_reason=finish, prompt_tokens=len(job.prompt))
        names = asked.columns
        vocabulary = self._checkpoint.vocabulary
        if "token_ids" in names:
            delta.token_ids.append(sampled.token)
        if "logprobs" in names:
            delta.logprobs.append(_rounded(sampled.logprob, asked.logprob_decimals))
        if "top_ids" in names:
            delta.top_ids.append(sampled.top_ids)
            delta.top_logprobs.append([_rounded(x, asked.logprob_decimals) for x in sampled.top_logprobs])
        if "ranks" in names:
            delta.ranks.append(sampled.rank)
        if "token_text" in names:
            delta.token_text.append(vocabulary.text_of(sampled.token))
        if "top_text" in names:
            delta.top_text.append([vocabulary.text_of(token_id) for token_id in sampled.top_ids])
        return delta


def _deliver(news: list[tuple[Request, Delta | EngineError]]) -> None:
    """One call per event loop, not one per token."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Request, Delta | EngineError]]] = defaultdict(
        list
    )
    for job, result in news:
        by_loop[job.loop].append((job, result))
    for loop, results in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, results)
        except RuntimeError:  # the loop is closed: its readers are gone
            for job, _ in results:
                job.cancelled = True


def _put_all(news: list[tuple[Request, Delta | EngineError]]) -> None:
    for job, result in news:
        job.deltas.put(result)


def _rounded(logprob: float, decimals: int) -> float | None:
    """JSON has no infinity; and the + 0.0 makes -0.0 a plain 0."""
    return round(logprob, decimals) + 0.0 if math.isfinite(logprob) else None


def _sampling_of(request: Generate) -> Sampling:
    return Sampling(
        temperature=request.temperature if request.temperature >= MIN_TEMPERATURE else 0.0,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=secrets.randbits(53) if request.seed is None else request.seed,
    )
