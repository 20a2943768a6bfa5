"""Scheduler for continuous batching (`StepScheduler`), which decides which tokens the next forward pass processes.

A slot is the part of the key-value cache that one request occupies. The scheduler uses no tensors, no clock and no threads. It
plans each step in this order:

1. It removes cancelled requests. Their slots become free at once.
2. It assigns free slots to waiting requests, oldest first (`reusable_slot`). A request with several hypotheses needs one slot
   for each. If too few slots are free for the oldest request, all later requests wait too, so that they cannot overtake it
   forever.
3. It decodes one token for each hypothesis of each request whose prompt was processed completely.
4. It spends the remaining token budget of the step on prompts, oldest first. A prompt that exceeds the budget is processed
   in chunks over several steps, so that a long prompt never blocks the requests that decode.
5. The step that processes the last chunk of a prompt also samples the request's first token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidewire_server.generation.torch_engine.choose_reusable_slot import EMPTY, KeptText, reusable_slot

SCORED_TOKENS = 256
"""Maximum number of prompt tokens per step whose logits are kept for log-probabilities. The limit bounds memory: with a
vocabulary of 128,000, the logits of 256 tokens take 131 MB."""


@dataclass(eq=False)
class Sequence:
    """State of a request that the scheduler reads and updates."""

    prompt: list[int]
    scope: str = ""
    """Cache scope. Only requests of the same scope reuse each other's keys and values."""
    slot: int = -1
    """Slot in which the prompt is processed, or -1 if the request has no slot."""
    beams: int = 1
    """Number of slots that the request needs."""
    slots: list[int] = field(default_factory=list)
    """All slots of the request. The first is `slot`."""
    read: int = 0
    """Number of tokens of the prompt that were processed, so that they are in the key-value cache."""
    generated: int = 0
    """Number of tokens generated so far."""
    last: int = -1
    """The last generated token, which is not in the key-value cache yet."""
    cached: list[int] = field(default_factory=list)
    """The tokens that are in the key-value cache. If the request has several slots, only the prompt's tokens."""
    cancelled: bool = False
    scores_prompt: bool = False
    """Whether the request asks for the log-probabilities of its prompt."""

    @property
    def decodes(self) -> bool:
        """Whether the prompt was processed completely, so that each step generates one token of the request."""
        return self.generated > 0

    @property
    def length(self) -> int:
        """Total number of tokens of the prompt and the generated text."""
        return len(self.prompt) + self.generated


S = TypeVar("S", bound=Sequence)


@dataclass(frozen=True)
class Prefill(Generic[S]):
    """A chunk of a prompt that one step processes, from token `start` up to but not including token `end`."""

    sequence: S
    start: int
    end: int

    @property
    def completes(self) -> bool:
        return self.end == len(self.sequence.prompt)

    @property
    def scored(self) -> int:
        """Number of the chunk's tokens whose logits are needed. Each scores the token that follows it in the prompt."""
        return self.end - self.start - self.completes if self.sequence.scores_prompt else 0


@dataclass(frozen=True)
class StepPlan(Generic[S]):
    """Plan of one forward pass: the requests that decode one token, and the prompt chunks to process."""

    decode: list[S]
    prefill: list[Prefill[S]]

    @property
    def requests(self) -> list[S]:
        """All requests of the step, beginning with the requests that decode."""
        return [*self.decode, *(part.sequence for part in self.prefill)]

    @property
    def sampled(self) -> list[S]:
        """Requests for which this step samples a token.

        The list begins with all requests that decode, followed by the requests whose last prompt chunk the step
        processes.
        """
        return [*self.decode, *(part.sequence for part in self.prefill if part.completes)]

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill)

    def halves(self) -> list[StepPlan[S]]:
        """Divide the plan into two plans. Return an empty list if it has only one request.

        A plan with decoding requests and prompts is divided into these two kinds. Both halves can be executed even if the plan
        was already executed in part, because each request writes only to its own slot.
        """
        if len(self.requests) == 1:
            return []
        if self.decode and self.prefill:
            return [StepPlan(self.decode, []), StepPlan([], self.prefill)]
        half = len(self.requests) // 2
        return [
            StepPlan(self.decode[:half], self.prefill[:half]),
            StepPlan(self.decode[half:], self.prefill[half:]),
        ]


class StepScheduler(Generic[S]):
    """Scheduler for continuous batching. It keeps the waiting and running requests, and assigns slots to them.

    Args:
        slots: Maximum number of requests that run at the same time.
        step_tokens: Maximum number of tokens per step. It must be greater than `slots`, so that each step can decode one
            token of every request and also process a part of a prompt.
    """

    def __init__(self, slots: int, step_tokens: int) -> None:
        self._step_tokens = step_tokens
        self._free: dict[int, KeptText] = dict.fromkeys(range(slots), EMPTY)
        self._waiting: deque[S] = deque()
        self._running: list[S] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, sequence: S) -> None:
        """Add a request to the end of the queue of waiting requests. It must not need more slots than there are."""
        self._waiting.append(sequence)

    def schedule(self) -> StepPlan[S]:
        """Plan the next step. Assign free slots, then choose the requests that decode and the prompt chunks to process."""
        for sequence in [s for s in self._running if s.cancelled]:
            self.finish(sequence)
        if any(s.cancelled for s in self._waiting):
            self._waiting = deque(s for s in self._waiting if not s.cancelled)
        while self._waiting and self._waiting[0].beams <= len(self._free):
            sequence = self._waiting.popleft()
            self._assign(sequence)

        decode = [s for s in self._running if s.decodes]
        budget = self._step_tokens - sum(s.beams for s in decode)
        scored = SCORED_TOKENS
        prefill = []
        for sequence in self._running:
            size = min(budget, scored) if sequence.scores_prompt else budget
            if sequence.decodes or size == 0:
                continue
            end = min(len(sequence.prompt), sequence.read + size)
            scored -= (end - sequence.read) * sequence.scores_prompt
            prefill.append(Prefill(sequence, sequence.read, end))
            budget -= end - sequence.read
        return StepPlan(decode, prefill)

    def completed(self, step: StepPlan[S], tokens: list[int]) -> None:
        """Record that a step was executed.

        Args:
            step: The step.
            tokens: The sampled tokens, in the order of `step.sampled`.
        """
        for part in step.prefill:
            part.sequence.read = part.end
            part.sequence.cached = part.sequence.prompt[: part.end]
        for sequence in step.decode:
            if sequence.beams == 1:
                sequence.cached.append(sequence.last)
        for sequence, token in zip(step.sampled, tokens, strict=True):
            sequence.last = token
            sequence.generated += 1

    def _assign(self, sequence: S) -> None:
        """Start a request in a free slot. If the last text in this slot shares a long prefix with the prompt, its keys and
        values are reused; see `reusable_slot`.
        """
        # Do not reuse the last token of the prompt, because its logits are needed. If log-probabilities of the prompt are
        # requested, reuse no tokens.
        end = 0 if sequence.scores_prompt else len(sequence.prompt) - 1
        slot, sequence.read = reusable_slot(self._free, sequence.prompt[:end], sequence.scope)
        others = sorted(self._free.keys() - {slot})[: sequence.beams - 1]
        sequence.slot, sequence.slots = slot, [slot, *others]
        for taken in sequence.slots:
            del self._free[taken]
        self._running.append(sequence)

    def finish(self, sequence: S, *, failed: bool = False) -> None:
        """Remove a running request and release its slots. If it failed, the contents of its slots are not reused."""
        self._running.remove(sequence)
        self._free |= dict.fromkeys(sequence.slots, EMPTY)
        if not failed:
            self._free[sequence.slot] = KeptText(sequence.cached, sequence.scope)
        sequence.slot, sequence.slots = -1, []

    def clear(self) -> list[S]:
        """Remove all running and waiting requests from the scheduler, and return them."""
        removed = [*self._running, *self._waiting]
        for sequence in list(self._running):
            self.finish(sequence)
        self._waiting.clear()
        return removed
