"""Which tokens the next step reads. No tensors here, no time, no threads.

Rules of a step, in this order:

1. A cancelled request leaves; its slot is free at once.
2. The oldest waiting request takes the lowest free slot, while there is one.
3. Each request whose prompt is read decodes one token.
4. What the decoding tokens leave of the step's budget goes to prompts, oldest first. A prompt longer than
   that is read in chunks over several steps, so that a long prompt never stops those that decode.
5. The step that reads the last chunk of a prompt also samples its first token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar


@dataclass(eq=False)
class Sequence:
    """A request as the scheduler sees it."""

    prompt: list[int]
    slot: int = -1
    read: int = 0
    """Prompt tokens in the cache."""
    generated: int = 0
    last: int = -1
    """The newest token: not yet in the cache."""
    cancelled: bool = False

    @property
    def decodes(self) -> bool:
        return self.generated > 0

    @property
    def length(self) -> int:
        """Tokens of prompt and generated text."""
        return len(self.prompt) + self.generated


S = TypeVar("S", bound=Sequence)


@dataclass(frozen=True)
class Prefill(Generic[S]):
    """Tokens `start…end` of a prompt."""

    sequence: S
    start: int
    end: int

    @property
    def completes(self) -> bool:
        return self.end == len(self.sequence.prompt)


@dataclass(frozen=True)
class StepPlan(Generic[S]):
    """What one forward pass reads."""

    decode: list[S]
    prefill: list[Prefill[S]]

    @property
    def sampled(self) -> list[S]:
        """The requests that get a token from this step: those that decode, then those whose prompt is read."""
        return [*self.decode, *(part.sequence for part in self.prefill if part.completes)]

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill)


class StepScheduler(Generic[S]):
    """Requests on their way through the slots.

    Args:
        slots: requests that run at a time.
        step_tokens: tokens that a step reads at most; at least `slots`, so that decoding always fits.
    """

    def __init__(self, slots: int, step_tokens: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        if step_tokens <= slots:
            raise ValueError(f"step_tokens must be more than the {slots} slots, not {step_tokens}")
        self.slots = slots
        self._step_tokens = step_tokens
        self._free = list(range(slots))
        heapify(self._free)
        self._waiting: deque[S] = deque()
        self._running: list[S] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, sequence: S) -> None:
        self._waiting.append(sequence)

    def plan(self) -> StepPlan[S]:
        """The next step, by the rules above."""
        for sequence in [s for s in self._running if s.cancelled]:
            self.finish(sequence)
        if any(s.cancelled for s in self._waiting):
            self._waiting = deque(s for s in self._waiting if not s.cancelled)
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            sequence.slot = heappop(self._free)
            self._running.append(sequence)

        decode = [s for s in self._running if s.decodes]
        budget = self._step_tokens - len(decode)
        prefill = []
        for sequence in self._running:
            if sequence.decodes or budget == 0:
                continue
            end = min(len(sequence.prompt), sequence.read + budget)
            prefill.append(Prefill(sequence, sequence.read, end))
            budget -= end - sequence.read
        return StepPlan(decode, prefill)

    def done(self, step: StepPlan[S], tokens: list[int]) -> None:
        """Record that a step ran and sampled `tokens`, in the order of `step.sampled`."""
        for part in step.prefill:
            part.sequence.read = part.end
        for sequence, token in zip(step.sampled, tokens, strict=True):
            sequence.last = token
            sequence.generated += 1

    def finish(self, sequence: S) -> None:
        """Take a running request out; its slot is free."""
        self._running.remove(sequence)
        heappush(self._free, sequence.slot)
        sequence.slot = -1

    def clear(self) -> list[S]:
        """Take all requests out and return them."""
        everyone = [*self._running, *self._waiting]
        for sequence in list(self._running):
            self.finish(sequence)
        self._waiting.clear()
        return everyone
