"""The torch engine (`TorchEngine`). Its thread repeatedly plans a step, executes the step, and delivers the tokens."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import torch

from tidewire_server.generation.checkpoint_folder import bytes_text
from tidewire_server.generation.engine_interface import (
    Delta,
    EngineClosedError,
    EngineError,
    EngineFullError,
    LoggedTokens,
    Stats,
    check_members,
)
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.schema_limits import DEFAULT_LIMITS, SchemaLimits
from tidewire_server.generation.torch_engine.beam_search import BeamSearch
from tidewire_server.generation.torch_engine.cache_sizing import allocate_cache
from tidewire_server.generation.torch_engine.capabilities import capabilities_of
from tidewire_server.generation.torch_engine.delta_queue import deliver
from tidewire_server.generation.torch_engine.detokenizer import OutputText, can_continue
from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load
from tidewire_server.generation.torch_engine.request_reader import RequestReader
from tidewire_server.generation.torch_engine.running_request import RunningRequest
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import parameters_of
from tidewire_server.generation.torch_engine.step_profiler import StepProfiler
from tidewire_server.generation.torch_engine.step_runner import Runner, StepResult
from tidewire_server.generation.torch_engine.step_scheduler import StepPlan, StepScheduler
from tidewire_server.user_paths import user_path

logger = logging.getLogger(__name__)


class TorchEngine:
    """Engine that generates text with a Hugging Face checkpoint and continuous batching.

    Args:
        checkpoint: The loaded model.
        slots: Maximum number of requests that run at the same time.
        max_waiting: Maximum number of requests that wait for a slot. Additional requests are rejected.
        step_tokens: Maximum number of tokens that one forward pass processes. It is raised to at least `slots` + 1.
        max_top: Maximum value of the input member `top_logprobs`. Values above `MAX_TOP` have no effect.
        max_num_beams: Maximum value of the input member `num_beams`. Values above the number of slots have no effect.
        context: Maximum number of tokens of the prompt and the generated text together. None selects the model's maximum.
        max_cache_bytes: Maximum size of the key-value cache, in bytes. If a cache for the model's whole context would be
            larger, the engine uses a shorter context. This limit has no effect if `context` is set.
        profile: Folder for trace files of a few steps. None disables profiling.
        schema_limits: Limits on the input member `json_schema`.
        max_mask_share: Limit on the time for the masks of one request with a JSON Schema; see `add_generate`.

    Raises:
        LoadError: `slots` is less than 1, the model's context is shorter than `context`, the cache cannot be allocated,
            or a cache of `max_cache_bytes` is too small even for a context of `MIN_CONTEXT` tokens.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        slots: int = 16,
        max_waiting: int = 256,
        step_tokens: int = 2048,
        max_top: int = 20,
        max_num_beams: int = 8,
        context: int | None = None,
        max_cache_bytes: int = 4 << 30,
        profile: Path | None = None,
        schema_limits: SchemaLimits = DEFAULT_LIMITS,
        max_mask_share: float = 0.25,
    ) -> None:
        cache = allocate_cache(checkpoint, slots, context=context, max_bytes=max_cache_bytes)
        self._checkpoint = checkpoint
        self.caps = capabilities_of(
            checkpoint, context=cache.context, slots=slots, max_top=max_top, max_num_beams=max_num_beams
        )
        self._reader = RequestReader(checkpoint, cache.context, schema_limits)
        self._max_mask_share = max_mask_share
        self._scheduler: StepScheduler[RunningRequest] = StepScheduler(slots, max(step_tokens, slots + 1))
        self._runner = Runner(checkpoint, cache)
        self._cache = cache
        self.cache_bytes = cache.nbytes
        """Size of the key-value cache, in bytes."""
        self._profiler = None if profile is None else StepProfiler(profile)
        # A request that was cancelled stays open until the next step, with its penalties on the device. Without a limit, a caller
        # that starts and cancels requests during a long step could exhaust the memory.
        self._max_open = slots + max_waiting
        self._wake = threading.Condition()
        # Hold the lock of the condition `_wake` to use the scheduler and the attributes up to the next comment.
        self._closing = False
        self._reason = "the engine was closed"
        self._started = 0
        # Only the engine's thread changes the counters below.
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        # The first request starts the thread. An engine that was never used can therefore be garbage-collected without a call
        # of `close`.
        self._thread = threading.Thread(target=self._work, name="tidewire-engine", daemon=True)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        since: float | None = None,
        **options: Any,
    ) -> Self:
        """Load a checkpoint and create an engine for it.

        Args:
            folder: Folder of a local Hugging Face checkpoint. `~` is expanded.
            device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
            dtype: `auto`, `float32`, `bfloat16`, `float16` or `float64`.
            threads: Number of CPU threads for torch. None keeps torch's default.
            since: Value of `time.perf_counter()` from which the logged loading time is measured. None means now.
            options: Other arguments of `TorchEngine`.

        Raises:
            LoadError: The checkpoint is not supported, or it cannot be read, or the engine cannot be created for it.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        begun, path = time.perf_counter() if since is None else since, user_path(folder)
        checkpoint = load(path, device=device, dtype=dtype)
        engine = cls(checkpoint, **options)
        logger.info(
            "loaded the model %s in %.1f s (%s, %s), memory: %s of weights, %s of cache (%d slots of %d tokens)",
            path,
            time.perf_counter() - begun,
            engine.caps.device,
            engine.caps.dtype,
            bytes_text(checkpoint.weight_bytes),
            bytes_text(engine.cache_bytes),
            engine.caps.concurrency,
            engine.caps.context,
        )
        return engine

    async def check(self, request: Generate) -> None:
        """Validate a request; see `Engine.check`."""
        check_members(request, self.caps)
        await self._reader.check(request)

    def continues(self, request: Generate, logged: LoggedTokens) -> bool:
        c = self._checkpoint
        return can_continue(request, logged, c.vocabulary, c.end_ids)

    async def generate(self, request: Generate, logged: LoggedTokens | None = None) -> AsyncGenerator[Delta]:
        """Generate text; see `Engine.generate`. Token blocks that a slow reader has not read yet are merged."""
        check_members(request, self.caps)
        prompt, grammar = await self._reader.read(request)
        if request.max_tokens is None:
            request = request.model_copy(update={"max_tokens": self._cache.context - len(prompt)})
        text = OutputText(request, self._checkpoint.vocabulary, self._checkpoint.end_ids)
        continued = [] if logged is None else logged.token_ids
        if logged is not None and (finish := text.feed_again(logged, self.caps.model)) is not None:
            yield Delta(finish_reason=finish, prompt_tokens=len(prompt))
            return
        parameters = parameters_of(
            request,
            prompt,
            size=self._checkpoint.vocab_size,
            device=self._checkpoint.device,
            max_top=self.caps.max_top,
            grammar=grammar,
        )
        search = None
        if request.num_beams > 1:
            search = BeamSearch(
                request.num_beams,
                end_tokens=len(self._checkpoint.end_ids),
                length_penalty=request.length_penalty,
                text=text,
            )
        job = RunningRequest(
            prompt=prompt + continued,
            scope=request.cache_scope,
            continued=len(continued),
            parameters=parameters,
            beams=request.num_beams,
            search=search,
            input=request,
            columns=request.columns,
            text=text,
            grammar=grammar,
            loop=asyncio.get_running_loop(),
        )
        if parameters.processor is not None:
            parameters.processor.add(to_device(continued, self._checkpoint.device, torch.int64))
        if grammar is not None:
            for token in continued:
                grammar.advance(token)
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
                waiting=self._scheduler.waiting,
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

    def _submit(self, job: RunningRequest) -> None:
        with self._wake:
            if self._closing:
                raise EngineClosedError(self._reason)
            taken = self._scheduler.waiting + self._scheduler.running
            if taken >= self._max_open:
                raise EngineFullError(
                    f"the engine has reached its limit: {taken} requests are running or waiting"
                )
            if self._thread.ident is None:
                self._thread.start()
            self._started += 1
            self._scheduler.add(job)
            self._wake.notify()

    # ---- engine thread -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Execute steps until the engine is closed or fails. Then end all requests with an error."""
        try:
            self._execute_steps()
        except BaseException as error:  # also a panic of a library in Rust
            logger.exception("the engine failed; restart the server")
            self._reason = (
                f"the engine failed ({type(error).__name__}); see the server's log, and restart the server"
            )
        with self._wake:
            self._closing = True
            left = self._scheduler.clear()
        deliver([(job, EngineClosedError(self._reason)) for job in left])

    def _execute_steps(self) -> None:
        scheduler = self._scheduler
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or scheduler.running or scheduler.waiting)
                if self._closing:
                    break
                step = scheduler.schedule()
            if step:
                self._run(step)
        if self._profiler is not None:
            self._profiler.finish()

    def _run(self, step: StepPlan[RunningRequest]) -> None:
        """Execute a step, and deliver its results.

        If the step fails, for example because memory is exhausted, it is repeated as two smaller steps. A request ends with an
        error only if a step that contains no other request fails.
        """
        begun = time.perf_counter()
        try:
            with nullcontext() if self._profiler is None else self._profiler.step(step):
                result = self._runner.run(step)
        except Exception as error:
            count, name = len(step.requests), type(error).__name__
            if count > 1:
                logger.warning("a step of %d requests failed (%s) and is repeated in two steps", count, name)
            else:
                logger.exception("a step of one request failed")
            # Drop the traceback, because it keeps the tensors of the failed step.
            failure = error.with_traceback(None)
        else:
            self._complete(step, result, time.perf_counter() - begun)
            return
        for part in step.halves():
            self._run(part)
        if len(step.requests) == 1:
            text = _failure_message(failure, step, self.caps.concurrency)
            self._finish([(job, EngineError(text)) for job in step.requests])

    def _complete(
        self, step: StepPlan[RunningRequest], result: StepResult[RunningRequest], seconds: float
    ) -> None:
        """Record and deliver the results of a step. `seconds` is the duration of the step."""
        for job in step.sampled if len(step.requests) > 1 else []:
            if job.grammar is not None:
                job.grammar.charge(seconds, self._max_mask_share)
        sampled, prompts = result
        with self._wake:
            self._scheduler.completed(step, [one.token for one in sampled])
            self._steps += 1
            self._prompt_tokens += sum(part.end - part.start for part in step.prefill)
            self._generated_tokens += len(sampled)
        self._finish(
            [
                *((job, job.prompt_delta(values)) for job, values in prompts),
                *((job, job.delta(one)) for job, one in zip(step.sampled, sampled, strict=True)),
            ]
        )

    def _finish(self, results: list[tuple[RunningRequest, Delta | EngineError]]) -> None:
        """Release the slots of requests that have ended, and deliver all results."""
        try:
            for job, delta in results:
                if isinstance(delta, EngineError):
                    # Clear the slots, because they may contain NaN. The mask would not hide NaN from the next request, because
                    # NaN plus -inf is NaN. If clearing fails, the engine ends.
                    for slot in job.slots:
                        self._cache.clear(slot)
        finally:
            with self._wake:
                for job, delta in results:
                    if (isinstance(delta, EngineError) or delta.finish_reason is not None) and job.slot >= 0:
                        self._scheduler.finish(job, failed=isinstance(delta, EngineError))
            deliver(results)


def _failure_message(error: Exception, step: StepPlan[RunningRequest], slots: int) -> str:
    """Return the error message for a request whose step failed. The message must not contain internal details of the error.

    Args:
        error: Exception that the step raised.
        step: The failed step, which contained only this request.
        slots: Maximum number of requests that run at the same time.
    """
    name = type(error).__name__
    # On a CPU, torch raises a RuntimeError.
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
    if not is_memory:
        return f"the engine failed in a step of this request ({name}); see the server's log for details"
    tokens = sum(part.end - part.start for part in step.prefill)
    work = f"{tokens} token{'' if tokens == 1 else 's'} of the prompt" if tokens else "the next token"
    return (
        f"the engine's memory does not suffice for {work} of this request ({name}); shorten the prompt, or start the "
        f"server with fewer slots (now {slots}) or a shorter context"
    )
