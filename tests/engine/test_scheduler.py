import random

import pytest

from tidewire_server.generation.torch_engine.step_scheduler import Sequence, StepScheduler


def sequence(tokens: int) -> Sequence:
    return Sequence(prompt=[1] * tokens)


def run(scheduler: StepScheduler[Sequence]) -> list[tuple[int, int]]:
    """Plan and complete one step; return the prompt tokens read, as (prompt length, tokens read)."""
    step = scheduler.schedule()
    scheduler.done(step, [7] * len(step.sampled))
    return [(len(part.sequence.prompt), part.end - part.start) for part in step.prefill]


def test_waiting_requests_take_the_lowest_free_slot_in_order_of_arrival():
    scheduler = StepScheduler(slots=2, step_tokens=64)
    first, second, third, fourth = (sequence(4) for _ in range(4))
    for s in (first, second, third, fourth):
        scheduler.add(s)
    run(scheduler)
    assert (first.slot, second.slot, third.slot) == (0, 1, -1)
    scheduler.finish(first)
    run(scheduler)
    assert (third.slot, fourth.slot) == (0, -1)
    assert (scheduler.running, scheduler.waiting) == (2, 1)


def test_decoding_precedes_prefill_and_a_long_prompt_is_split_into_chunks():
    scheduler = StepScheduler(slots=3, step_tokens=10)
    decoding = sequence(3)
    scheduler.add(decoding)
    run(scheduler)
    long, short = sequence(21), sequence(2)
    scheduler.add(long)
    scheduler.add(short)
    assert run(scheduler) == [(21, 9)]
    assert run(scheduler) == [(21, 9)]
    assert run(scheduler) == [(21, 3), (2, 2)]
    assert decoding.generated == 4
    assert (long.generated, short.generated) == (1, 1)


def test_cancelled_request_leaves_its_slot_or_the_queue_before_the_next_step():
    scheduler = StepScheduler(slots=1, step_tokens=64)
    running, waiting, last = sequence(1), sequence(1), sequence(1)
    for s in (running, waiting, last):
        scheduler.add(s)
    run(scheduler)
    running.cancelled = waiting.cancelled = True
    run(scheduler)
    assert last.slot == 0
    assert scheduler.waiting == 0


def test_steps_stay_within_their_token_budget_and_every_request_ends():
    chance = random.Random(1)
    scheduler = StepScheduler(slots=4, step_tokens=9)
    wanted = {}
    for _ in range(60):
        s = sequence(chance.randint(1, 40))
        wanted[s] = chance.randint(1, 12)
        scheduler.add(s)
    ended = 0
    for _ in range(2000):
        step = scheduler.schedule()
        read = len(step.decode) + sum(part.end - part.start for part in step.prefill)
        assert read <= 9
        slots = [s.slot for s in {*step.decode, *(part.sequence for part in step.prefill)}]
        assert len(set(slots)) == len(slots) <= 4
        if not step:
            break
        scheduler.done(step, [7] * len(step.sampled))
        for s in step.sampled:
            if s.generated == wanted[s] or chance.random() < 0.02:
                scheduler.finish(s)
                ended += 1
    assert ended == 60
    assert (scheduler.running, scheduler.waiting) == (0, 0)


@pytest.mark.parametrize(("slots", "step_tokens"), [(0, 10), (8, 8)])
def test_invalid_settings_are_refused(slots: int, step_tokens: int):
    with pytest.raises(ValueError, match="must be"):
        StepScheduler(slots, step_tokens)
