import random

from support.line_counts import line_count
from tidewire_server.generation.torch_engine.choose_reusable_slot import REUSED_TOKENS
from tidewire_server.generation.torch_engine.step_scheduler import Sequence, StepScheduler


def sequence(tokens: int) -> Sequence:
    return Sequence(prompt=[1] * tokens)


def run(scheduler: StepScheduler[Sequence]) -> list[tuple[int, int]]:
    """Plan and complete one step; return the prompt tokens read, as (prompt length, tokens read)."""
    step = scheduler.schedule()
    scheduler.completed(step, [7] * len(step.sampled))
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
        s = Sequence(prompt=[1] * chance.randint(1, 40), beams=chance.choice([1, 1, 2, 4]))
        wanted[s] = chance.randint(1, 12)
        scheduler.add(s)
    ended = 0
    for _ in range(2000):
        step = scheduler.schedule()
        read = sum(s.beams for s in step.decode) + sum(part.end - part.start for part in step.prefill)
        assert read <= 9
        slots = [slot for s in {*step.decode, *(part.sequence for part in step.prefill)} for slot in s.slots]
        assert len(set(slots)) == len(slots) <= 4
        if not step:
            break
        scheduler.completed(step, [7] * len(step.sampled))
        for s in step.sampled:
            if s.generated == wanted[s] or chance.random() < 0.02:
                scheduler.finish(s)
                ended += 1
    assert ended == 60
    assert (scheduler.running, scheduler.waiting) == (0, 0)


def conversation(*prompts: list[int], fails: bool = False) -> list[tuple[int, int]]:
    """Run texts of three generated tokens (id 7) one after the other; return the slot and the tokens read of each."""
    scheduler = StepScheduler(slots=3, step_tokens=512)
    found = []
    for prompt in prompts:
        text = Sequence(prompt=prompt)
        scheduler.add(text)
        ((_, read),) = run(scheduler)
        found.append((text.slot, read))
        run(scheduler)
        run(scheduler)
        scheduler.finish(text, failed=fails)
    return found


def test_prompt_that_continues_an_earlier_text_reuses_its_tokens():
    first = [1] * REUSED_TOKENS
    # The last generated token was never processed, so the cache has two of the three.
    assert conversation(first, [*first, 7, 7, 7, 5, 5]) == [(0, 32), (0, 5 - 2)]
    assert conversation(first, [*first, 8, 8]) == [(0, 32), (0, 2)]
    assert conversation(first, first) == [
        (0, 32),
        (0, 32),
    ]  # 31 tokens are too few, and the last one is needed
    assert conversation([*first, 2], [*first, 2]) == [(0, 33), (0, 1)]
    assert conversation(first, [*first, 7], fails=True) == [(0, 32), (0, 33)]


def test_slot_with_the_longest_shared_prefix_is_assigned():
    scheduler = StepScheduler(slots=3, step_tokens=512)
    texts = [Sequence(prompt=[1] * 40 + [i] * 40) for i in range(3)]
    for text in texts:
        scheduler.add(text)
    run(scheduler)
    for text in texts:
        scheduler.finish(text)
    follower, other = Sequence(prompt=[1] * 40 + [2] * 50), Sequence(prompt=[5] * 90)
    scheduler.add(follower)
    scheduler.add(other)
    assert run(scheduler) == [(90, 10), (90, 90)]
    assert (follower.slot, other.slot) == (2, 0)


def test_assignment_among_many_slots_executes_few_lines_however_long_the_shared_prefix_is():
    def lines(tokens: int) -> int:
        scheduler = StepScheduler(slots=64, step_tokens=1 << 20)
        texts = [Sequence(prompt=[*range(tokens + i), -1]) for i in range(64)]
        for text in texts:
            scheduler.add(text)
        run(scheduler)
        for text in texts:
            scheduler.finish(text)
        follower = Sequence(prompt=[*range(tokens + 50), 7, 7])
        scheduler.add(follower)
        count = line_count(scheduler.schedule)
        assert (follower.slot, follower.read) == (50, tokens + 50)
        return count

    # Each slot shares more than the ones before it, which is the most expensive order. A bisection has four more rounds.
    assert lines(1600) <= lines(100) * 2


def test_prompt_that_was_cancelled_while_it_was_read_is_reused_as_far_as_it_was_read():
    scheduler = StepScheduler(slots=1, step_tokens=50)
    cancelled, follower = sequence(120), sequence(110)
    scheduler.add(cancelled)
    run(scheduler)
    cancelled.cancelled = True
    scheduler.add(follower)
    assert run(scheduler) == [(110, 50)]
    assert follower.read == 100


def test_request_with_several_hypotheses_waits_for_its_slots_and_is_not_overtaken():
    scheduler = StepScheduler(slots=4, step_tokens=64)
    first, second, search, last = sequence(4), sequence(4), Sequence(prompt=[1] * 4, beams=3), sequence(4)
    for s in (first, second, search, last):
        scheduler.add(s)
    run(scheduler)
    assert (search.slots, last.slots) == ([], [])
    scheduler.finish(first)
    run(scheduler)
    assert (search.slots, last.slots) == ([0, 2, 3], [])
    scheduler.finish(second)
    run(scheduler)
    assert (last.slots, scheduler.waiting) == ([1], 0)
    scheduler.finish(search)
    assert (search.slot, search.slots) == (-1, [])
    everything = Sequence(prompt=[1] * 4, beams=4)
    scheduler.add(everything)
    scheduler.finish(last)
    run(scheduler)
    assert everything.slots == [0, 1, 2, 3]


def test_requests_behind_a_cancelled_search_are_assigned_at_once():
    scheduler = StepScheduler(slots=2, step_tokens=64)
    first, search, last = sequence(4), Sequence(prompt=[1] * 4, beams=2), sequence(4)
    for s in (first, search, last):
        scheduler.add(s)
    run(scheduler)
    assert last.slots == []
    search.cancelled = True
    run(scheduler)
    assert last.slots == [1]
