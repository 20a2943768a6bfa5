"""The torch engine (`TorchEngine`). Its thread repeatedly plans a step, executes the step, and delivers the tokens."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import orjson
import torch

from tidewire_server.generation.engine import (
    ContinuationError,
    Delta,
    EngineCapabilities,
    EngineClosedError,
    EngineError,
    EngineFullError,
    FinishReason,
    InputError,
    LoggedTokens,
    Stats,
    check_members,
)
from tidewire_server.generation.generate_input_and_value import MAX_TOP, Generate
from tidewire_server.generation.model_folder import bytes_text
from tidewire_server.generation.torch_engine.delta_queue import DeltaQueue
from tidewire_server.generation.torch_engine.detokenizer import TextStream
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, LoadError, load
from tidewire_server.generation.torch_engine.sampling.encoded_values import Values
from tidewire_server.generation.torch_engine.sampling.postprocess import Sampled
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import parameters_of
from tidewire_server.generation.torch_engine.sampling.structured_output import Grammar, Grammars
from tidewire_server.generation.torch_engine.step_profiler import StepProfiler
from tidewire_server.generation.torch_engine.step_runner import Runner, RunningSequence
from tidewire_server.generation.torch_engine.step_scheduler import StepPlan, StepScheduler
from tidewire_server.user_paths import user_path

logger = logging.getLogger(__name__)

SUPPORTED_MEMBERS = frozenset(
    {
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "n",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "ranks",
        "ties",
        "logprobs_mode",
        "token_text",
    }
)
"""Input members that this engine supports in addition to `CORE_MEMBERS`. If the model has a chat template, the engine also
supports `messages`. If it has an end-of-text token, the engine also supports `json_schema`."""

INVALID_LOGITS = "the model's logits for the next token are invalid (NaN or infinity)"

SPARE_TOKENS = 8
"""Maximum number of tokens that a tokenizer adds to a text, such as a begin-of-text token or a prefix space."""


@dataclass(eq=False, kw_only=True)
class Request(RunningSequence):
    """A request in the engine, together with its detokenizer, and with the queue from which the reader takes the
    generated tokens.
    """

    input: Generate
    columns: list[str]
    prompt_columns: list[str]
    text: TextStream
    continued: int = 0
    """Number of tokens at the end of `prompt` that an earlier attempt of the request had generated."""
    loop: asyncio.AbstractEventLoop
    deltas: DeltaQueue = field(default_factory=DeltaQueue)


class TorchEngine:
    """Engine that generates text with a Hugging Face checkpoint and continuous batching.

    Args:
        checkpoint: The loaded model.
        slots: Maximum number of requests that run at the same time.
        max_waiting: Maximum number of requests that wait for a slot. Further requests are rejected.
        step_tokens: Maximum number of tokens that one forward pass processes.
        max_top: Maximum value of the input member `top_logprobs`. Values above `MAX_TOP` have no effect.
        context: Maximum number of tokens of the prompt and the generated text together. None selects the model's maximum.
        max_cache_bytes: Maximum size of the key-value cache, in bytes. If a cache for the model's whole context would be
            larger, the engine uses a shorter context. It has no effect if `context` is set.
        profile: Folder to which profiles of some steps are written. None profiles nothing.

    Raises:
        LoadError: The model's context is shorter than `context`, the cache cannot be allocated, or a cache of
            `max_cache_bytes` is too small even for a context of `MIN_CONTEXT` tokens.
    """

    MIN_CONTEXT = 16
    """Shortest context with which the engine starts, in tokens."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        slots: int = 16,
        max_waiting: int = 256,
        step_tokens: int = 2048,
        max_top: int = 20,
        context: int | None = None,
        max_cache_bytes: int = 4 << 30,
        profile: Path | None = None,
    ) -> None:
        c = checkpoint
        per_slot = slots * KVCache.bytes_per_position(c.layers, c.kv_heads, c.head_size, c.dtype)
        if context is not None:
            if context > c.context:
                raise LoadError(
                    f"the context is {context} tokens, but {c.name} supports at most {c.context}; choose a shorter context"
                )
            max_cache_bytes = per_slot * (context + 1)
        requested = context or c.context
        context = min(requested, max_cache_bytes // per_slot - 1)
        if context < min(self.MIN_CONTEXT, requested):
            raise LoadError(
                f"{slots} slots of {self.MIN_CONTEXT} tokens need {per_slot * (self.MIN_CONTEXT + 1)} bytes of cache, "
                f"which is more than max_cache_bytes ({max_cache_bytes}); raise max_cache_bytes, or use fewer slots"
            )
        if context < requested:
            logger.warning(
                "the context is limited to %d instead of %d tokens, because of max_cache_bytes; use fewer slots (now %d), or set "
                "the context",
                context,
                c.context,
                slots,
            )
        self._checkpoint = checkpoint
        try:
            cache = KVCache(c.layers, slots, c.kv_heads, context, c.head_size, c.dtype, c.device)
        except RuntimeError as error:  # torch has no more specific class for exhausted memory of a CPU
            raise LoadError(
                f"the cache of {slots} slots of {context} tokens needs {bytes_text(per_slot * (context + 1))}, which cannot be "
                "allocated; use fewer slots or a shorter context"
            ) from error
        self._scheduler: StepScheduler[Request] = StepScheduler(slots, step_tokens)
        self._runner = Runner(c, cache)
        self.cache_bytes = per_slot * (context + 1)
        """Size of the key-value cache."""
        self._profiler = None if profile is None else _profiler_for(profile)
        self._caps = EngineCapabilities(
            model=c.name,
            context=context,
            max_top=min(max_top, MAX_TOP, c.vocab_size),
            concurrency=slots,
            members=SUPPORTED_MEMBERS
            | ({"messages"} if getattr(c.tokenizer, "chat_template", None) else set())
            | ({"json_schema"} if c.end_ids else set()),
            vocabulary=c.vocabulary,
            architecture=c.architecture,
            dtype=str(c.dtype).removeprefix("torch."),
            device=str(c.device),
            tokens=c.vocab_size,
        )
        # If the tokenizer has no normalizer, each token covers at least one byte. The number of tokens of a prompt is
        # then at most its size in bytes, so most prompts can be accepted without tokenizing them.
        self._byte_per_token = c.tokenizer.backend_tokenizer.normalizer is None
        # If the tokenizer has tokens that the model does not have, each prompt is tokenized to find them.
        self._surplus = c.tokenizer.backend_tokenizer.get_vocab_size() > c.vocab_size
        self._wake = threading.Condition()
        # The lock of `_wake` protects the scheduler and the attributes below.
        self._arrivals: deque[Request] = deque()
        self._max_open = slots + max_waiting
        self._closing = False
        self._started = 0
        # Only the engine's thread changes the counters below.
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        # The first request starts the thread, so that an engine that was never used can be garbage-collected without a
        # call of `close`.
        self._thread = threading.Thread(target=self._work, name="tidewire-engine", daemon=True)

    @cached_property
    def _grammars(self) -> Grammars:
        c = self._checkpoint
        return Grammars(c.vocabulary, c.vocab_size, c.end_ids, c.tokenizer.backend_tokenizer)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        slots: int = 16,
        max_waiting: int = 256,
        max_top: int = 20,
        context: int | None = None,
        profile: Path | None = None,
    ) -> Self:
        """Load a checkpoint and create an engine for it.

        Args:
            folder: Folder of a local Hugging Face checkpoint. `~` is expanded.
            device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
            dtype: `auto`, `float32`, `bfloat16`, `float16` or `float64`.
            threads: Number of CPU threads for torch. None keeps torch's default.
            slots: Maximum number of requests that run at the same time.
            max_waiting: Maximum number of requests that wait for a slot.
            max_top: Maximum value of the input member `top_logprobs`.
            context: Maximum number of tokens of the prompt and the generated text together.
            profile: Folder to which profiles of some steps are written.

        Raises:
            LoadError: The checkpoint is not supported, or it cannot be read, or the engine cannot be created for it.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        begun, path = time.perf_counter(), user_path(folder)
        checkpoint = load(path, device=device, dtype=dtype)
        engine = cls(
            checkpoint,
            slots=slots,
            max_waiting=max_waiting,
            max_top=max_top,
            context=context,
            profile=profile,
        )
        where = f"{engine.caps.device}, {engine.caps.dtype}"
        logger.info("loaded the model %s in %.1f s (%s)", path, time.perf_counter() - begun, where)
        logger.info(
            "memory: %s of weights, %s of cache (%d slots of %d tokens)",
            bytes_text(checkpoint.weight_bytes),
            bytes_text(engine.cache_bytes),
            slots,
            engine.caps.context,
        )
        return engine

    @property
    def caps(self) -> EngineCapabilities:
        return self._caps

    async def check(self, request: Generate) -> None:
        """Validate a request; see `Engine.check`.

        If the size of the prompt in bytes already shows that the prompt fits into the context, and the model has all tokens
        of its tokenizer, the prompt is not tokenized.

        Raises:
            InputError: The engine cannot serve the request. The error names the invalid or unsupported input member.
        """
        check_members(request, self._caps)
        if request.json_schema is not None:
            await asyncio.to_thread(self._grammar_of, request)
        size = len(request.prompt.encode()) if request.messages is None and self._byte_per_token else 0
        if self._surplus or not 0 < size <= self._caps.context - request.max_tokens - SPARE_TOKENS:
            await asyncio.to_thread(self._read_prompt, request)

    async def generate(self, request: Generate, logged: LoggedTokens | None = None) -> AsyncGenerator[Delta]:
        """Generate text; see `Engine.generate`. If the reader is slow, token blocks that it has not read yet are
        merged.
        """
        check_members(request, self._caps)
        prompt = await asyncio.to_thread(self._read_prompt, request)
        grammar = None if request.json_schema is None else await asyncio.to_thread(self._grammar_of, request)
        text = TextStream(self._checkpoint.vocabulary, request.stops)
        continued = [] if logged is None else logged.token_ids
        if logged is not None and (finish := self._feed_again(logged, request, text)) is not None:
            yield Delta(finish_reason=finish, prompt_tokens=len(prompt))
            return
        job = Request(
            prompt=prompt + continued,
            continued=len(continued),
            **parameters_of(
                request,
                prompt,
                size=self._checkpoint.vocab_size,
                device=self._checkpoint.device,
                max_top=self._caps.max_top,
                grammar=grammar,
            ),
            input=request,
            columns=request.columns,
            prompt_columns=request.prompt_columns,
            text=text,
            loop=asyncio.get_running_loop(),
        )
        if job.processor is not None:
            for token in continued:
                job.processor.add(token)
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

    def _feed_again(self, logged: LoggedTokens, request: Generate, text: TextStream) -> FinishReason | None:
        """Feed the tokens of an earlier attempt to the detokenizer, so that it holds back the same text as before.

        Returns:
            The reason why the generation had already ended, or None if it had not.

        Raises:
            ContinuationError: This model cannot have generated the tokens.
        """
        finish, found = None, ""
        for count, token in enumerate(logged.token_ids, 1):
            if finish is not None or not 0 <= token < len(self._checkpoint.vocabulary):
                break
            found += text.feed(token)
            finish = self._finish_of(token, count, request, text)
        else:
            found += text.flush() if finish is not None else ""
            if found == logged.text:
                return finish
        raise ContinuationError(
            f"the text cannot be continued after the restart of the server, because its {len(logged.token_ids)} logged "
            f"token ids do not match its logged text; it was probably generated with another model than {self._caps.model}"
        )

    def _finish_of(self, token: int, count: int, request: Generate, text: TextStream) -> FinishReason | None:
        """Return the reason why a generation ends after a token, which is its token number `count`, or None."""
        if token in self._checkpoint.end_ids or text.stopped:
            return "stop"
        return "length" if count == request.max_tokens else None

    def _read_prompt(self, request: Generate) -> list[int]:
        """Tokenize the prompt or the messages of a request.

        Raises:
            InputError: The prompt is empty, the chat template cannot render the messages, or the prompt and `max_tokens`
                together do not fit into the context.
        """
        tokenizer = self._checkpoint.tokenizer
        member = "prompt" if request.messages is None else "messages"
        if request.messages is None:
            text, add_special = request.prompt, True
        else:
            turns = [message.model_dump() for message in request.messages]
            try:
                text = str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
            except Exception as error:  # a template may raise any error
                raise InputError(
                    f"the model's chat template cannot render these messages: {error}", member=member
                ) from error
            add_special = False
        self._check_size(text, member)
        # Call the backend tokenizer, which is thread-safe. The tokenizer class of transformers is not thread-safe, because
        # it stores settings between calls. `encode` would hold the GIL, and thereby block the event loop for seconds.
        (encoded,) = tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        ids: list[int] = encoded.ids
        context = self._caps.context
        if not ids:
            raise InputError(
                f"{member} is empty, but the model needs at least one token to continue", member=member
            )
        if len(ids) >= context:
            raise InputError(
                f"{member} has {len(ids)} tokens, but the model's context is limited to {context} tokens, including at "
                "least one generated token",
                member=member,
                code="input_too_long",
            )
        if max(ids) >= self._checkpoint.vocab_size:
            # Only a tokenizer with more tokens than the model produces such ids.
            raise InputError(
                f"{member} contains {tokenizer.convert_ids_to_tokens(max(ids))!r}, which is token {max(ids)} of the "
                f"tokenizer, but the model has only the tokens up to {self._checkpoint.vocab_size - 1}; remove it",
                member=member,
            )
        if len(ids) + request.max_tokens > context:
            raise InputError(
                f"max_tokens is {request.max_tokens}, but {member} has {len(ids)} tokens, and the context of {context} "
                f"tokens has room for only {context - len(ids)} more",
                member="max_tokens",
                code="input_too_long",
            )
        return ids

    def _grammar_of(self, request: Generate) -> Grammar | None:
        """Compile the JSON Schema of a request.

        Raises:
            InputError: The schema cannot be used.
        """
        if request.json_schema is None:
            return None
        return self._grammars.compile(request.json_schema)

    def _check_size(self, text: str, member: str) -> None:
        """Reject a text if its size in bytes already shows that it is too long. Such a text need not be tokenized.

        Args:
            text: The prompt, or the messages as the chat template rendered them. A template may omit parts of the messages.
            member: Input member that contains the text.

        Raises:
            InputError: The text does not fit into the context.
        """
        size = len(text.encode())
        fewest = size // self._checkpoint.vocabulary.longest
        if fewest > self._caps.context:
            raise InputError(
                f"{member} has {size} bytes, which is at least {fewest} tokens, but the model's context is limited to "
                f"{self._caps.context} tokens",
                member=member,
                code="input_too_long",
            )

    def _submit(self, job: Request) -> None:
        with self._wake:
            if self._closing:
                raise EngineClosedError("the engine was closed")
            taken = len(self._arrivals) + self._scheduler.waiting + self._scheduler.running
            if taken >= self._max_open:
                raise EngineFullError(
                    f"the engine has reached its limit: {taken} requests are running or waiting"
                )
            if self._thread.ident is None:
                self._thread.start()
            self._started += 1
            self._arrivals.append(job)
            self._wake.notify()

    # ---- engine thread -----------------------------------------------------------------------------------------

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
                step = scheduler.schedule()
            if step:
                self._run(step)
        if self._profiler is not None:
            self._profiler.finish()
        _deliver([(job, EngineClosedError("the engine was closed")) for job in left])

    def _run(self, step: StepPlan[Request]) -> None:
        """Execute a step and deliver its tokens.

        If an exception occurs, for example because the memory is exhausted, the step is repeated in two steps. Only a
        request that fails in a separate step ends with an error.
        """
        results: list[tuple[Request, Delta | EngineError]] = []
        halves: list[StepPlan[Request]] = []
        try:
            if self._profiler is None:
                result = self._runner.run(step)
            else:
                with self._profiler.step(step):
                    result = self._runner.run(step)
        except Exception as error:
            halves = step.halves()
            if halves:
                count, name = len(step.requests), type(error).__name__
                logger.warning("a step of %d requests failed (%s) and is repeated in two steps", count, name)
            else:
                logger.exception("a step of one request failed")
                text = _failure(error, step, self._scheduler.slots)
                results = [(job, EngineError(text)) for job in step.requests]
        else:
            with self._wake:
                self._scheduler.done(step, [s.token for s in result.sampled])
                self._steps += 1
                self._prompt_tokens += sum(part.end - part.start for part in step.prefill)
                self._generated_tokens += len(result.sampled)
            results = [
                *((job, _prompt_delta(job, values)) for job, values in result.prompts),
                *((job, self._result(job, s)) for job, s in zip(step.sampled, result.sampled, strict=True)),
            ]
        # Repeat the step outside of the `except` block, because its traceback keeps the tensors of the failed step.
        for half in halves:
            self._run(half)
        for job, delta in results:
            if isinstance(delta, EngineError):
                # Otherwise the slot's next request could read invalid numbers after its end. A mask does not hide them,
                # because NaN plus -inf is NaN.
                self._runner.clear(job.slot)
        with self._wake:
            for job, delta in results:
                if (isinstance(delta, EngineError) or delta.finish_reason is not None) and job.slot >= 0:
                    self._scheduler.finish(job, failed=isinstance(delta, EngineError))
        _deliver(results)

    def _result(self, job: Request, sampled: Sampled) -> Delta | EngineError:
        try:
            return self._delta(job, sampled)
        except Exception as error:
            logger.exception("the result of a request cannot be built")
            return EngineError(f"the engine failed after a step of this request ({type(error).__name__})")

    def _delta(self, job: Request, sampled: Sampled) -> Delta | EngineError:
        """Build the row of one sampled token."""
        if not sampled.is_number:
            return EngineError(INVALID_LOGITS)
        token = sampled.token
        text = job.text.feed(token)
        finish = self._finish_of(token, job.continued + job.generated, job.input, job.text)
        if finish is not None:
            text += job.text.flush()
        if job.processor is not None and (reason := job.processor.error) is not None:
            return EngineError(f"the text cannot be continued so that it matches json_schema: {reason}")
        names, values = job.columns, sampled.values
        row: Sequence[Any] = (text,)
        if len(names) > 1:
            values = {**values, "text": text, "token_ids": b"%d" % token}
            if job.input.token_text:
                text_of = self._checkpoint.vocabulary.text_of
                values["token_text"] = orjson.dumps(text_of(token))
                values["top_text"] = orjson.dumps([*map(text_of, orjson.loads(values.get("top_ids", b"[]")))])
            row = [values[name] for name in names]
        return Delta([row], [], finish, len(job.prompt) - job.continued)


def _prompt_delta(job: Request, values: list[Values] | None) -> Delta | EngineError:
    """Build the rows of a part of the prompt."""
    if values is None:
        return EngineError(INVALID_LOGITS)
    rows: list[Sequence[Any]] = [[one[name] for name in job.prompt_columns] for one in values]
    return Delta(prompt_rows=rows, prompt_tokens=len(job.prompt) - job.continued)


def _profiler_for(folder: Path) -> StepProfiler:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoadError(f"the folder for profiles {folder} cannot be created: {error.strerror}") from error
    return StepProfiler(folder)


def _failure(error: Exception, step: StepPlan[Request], slots: int) -> str:
    """Return the error message for a request that failed in a separate step. It contains no details of the error."""
    name = type(error).__name__
    # On a CPU, torch raises a RuntimeError.
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
    if not is_memory:
        return f"the engine failed in a step of this request ({name}); see the server's log for details"
    tokens = sum(part.end - part.start for part in step.prefill)
    work = f"{tokens} tokens of the prompt" if tokens else "the next token"
    return (
        f"the engine's memory does not suffice for {work} of this request ({name}); shorten the prompt, or start the "
        f"server with fewer slots (now {slots}) or a shorter context"
    )


def _deliver(results: list[tuple[Request, Delta | EngineError]]) -> None:
    """Deliver results to their readers. Schedule only one callback for each event loop, instead of one for each
    token.
    """
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Request, Delta | EngineError]]] = defaultdict(
        list
    )
    for job, result in results:
        by_loop[job.loop].append((job, result))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, batch)
        except RuntimeError:  # The event loop is closed, so no reader can take the results.
            for job, _ in batch:
                job.cancelled = True


def _put_all(results: list[tuple[Request, Delta | EngineError]]) -> None:
    for job, result in results:
        job.deltas.put(result)
