"""`ShadowCopy` on a value that changes at each step: changes found at once, and changes found later."""

import copy
import itertools
import json
import random
from typing import Any

import pytest

from tidewire.protocol.diff import apply
from tidewire.protocol.document.json_values import same
from tidewire_server.log_writer.differ import ENDS, LONG, PATIENCE, ShadowCopy

TEXTS = ("", "a", "né", "🎉🎉", "x" * 40, "1")
SCALARS = (*TEXTS, 0, 1, 1.0, True, False, None, -0.0, 0.0, 2.5)


def frozen_clock() -> float:
    """A clock that stands still, so that a full comparison is due at every step."""
    return 0.0


def slow_clock() -> Any:
    """A clock that advances one second per reading, so that a full comparison runs only every `PATIENCE` steps."""
    return map(float, itertools.count()).__next__


class Writer:
    """Changes a value at random, in place or in a new value that shares parts with the old, as user functions do."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.value = self.history(self.draw.choice((LONG - 1, LONG + 1, 3 * LONG)))

    def row(self) -> Any:
        draw = self.draw
        match draw.randrange(5):
            case 0:
                return [draw.choice(SCALARS) for _ in range(draw.randrange(4))]
            case 1:
                return draw.choice(SCALARS)
            case 2 if draw.random() < 0.1:
                return {f"k{number}": draw.choice(SCALARS) for number in range(LONG + 20)}
            case 3 if draw.random() < 0.1:
                return [draw.choice(SCALARS) for _ in range(LONG + 20)]
            case _:
                return {"role": draw.choice(("user", "assistant")), "content": draw.choice(SCALARS), "n": [1]}

    def history(self, rows: int) -> Any:
        made = [self.row() for _ in range(rows)]
        match self.draw.randrange(3):
            case 0:
                return made
            case 1:
                return {"history": made, "state": 0}
            case _:
                return {f"row/{number}": row for number, row in enumerate(made)}

    def step(self) -> Any:
        if self.draw.random() < 0.2:
            # Immutable style: new containers along the changed path, shared objects elsewhere.
            self.value = copy.copy(self.value)
        for _ in range(self.draw.randrange(1, 4)):
            if not self.change(self.value, 0):
                self.value = self.history(LONG + 5)
        return self.value

    def change(self, place: Any, depth: int) -> bool:
        draw = self.draw
        if type(place) not in {list, dict} or not place:
            return False
        keys = list(place) if type(place) is dict else range(len(place))
        key = keys[-1] if draw.random() < 0.4 else draw.choice(keys)
        if draw.random() < 0.7 - 0.1 * depth and self.change(place[key], depth + 1):
            return True
        match draw.randrange(12):
            case 0 | 1 if type(place) is list:
                place.append(self.row())
            case 0 | 1:
                place[f"new {draw.random()}"] = self.row()
            case 2 if type(place) is list:
                place.insert(draw.randrange(len(place) + 1), self.row())
            case 3:
                del place[key]
            case 4 if type(place) is list and len(place) > 8:
                del place[-draw.randrange(1, 8) :]
            case 5 if type(place) is list:
                place.append(place.pop(0))
            case 6:
                place[key] = {0: False, 1: True}.get(place[key], 1.0) if type(place[key]) is int else 1
            case _ if type(place[key]) is str:
                place[key] += draw.choice(TEXTS)
            case _:
                place[key] = draw.choice(SCALARS)
        return True


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def found_at_once(known: Any, value: Any) -> bool:
    """Return whether `known` has every change that a single step always finds."""
    if type(known) is not type(value):
        return False
    if type(value) is list:
        places: Any = range(len(value))
    elif type(value) is dict:
        places = list(value)
    else:
        return same(known, value)
    if len(known) != len(value):
        return False
    if len(places) > LONG:
        places = [*places[:ENDS], *places[-ENDS:]]
    if type(value) is dict and any(name not in known for name in places):
        return False
    return all(found_at_once(known[place], value[place]) for place in places)


@pytest.mark.parametrize("seed", range(40))
def test_each_step_finds_all_changes_if_time_allows(seed):
    writer = Writer(seed)
    shadow = ShadowCopy(None, clock=frozen_clock)
    known = None
    for _ in range(40):
        value = writer.step()
        known = apply(known, copy.deepcopy(shadow.step(value)))
        assert canonical(known) == canonical(value)
        assert not shadow.behind


@pytest.mark.parametrize("seed", range(60))
def test_slow_comparison_finds_changes_at_the_ends_at_once_and_all_changes_in_the_end(seed):
    writer = Writer(seed)
    shadow = ShadowCopy(None, clock=slow_clock())
    known = None
    for _ in range(random.Random(seed).randrange(2, 60)):
        value = writer.step()
        known = apply(known, copy.deepcopy(shadow.step(value)))
        assert found_at_once(known, value)
    known = apply(known, shadow.catch_up())
    assert canonical(known) == canonical(value)
    # After `catch_up`, the next step continues from the caught-up value.
    value = writer.step()
    known = apply(known, copy.deepcopy(shadow.step(value)))
    assert canonical(apply(known, shadow.catch_up())) == canonical(value)


def test_change_in_the_middle_of_a_long_list_is_found_within_a_bounded_number_of_steps():
    history = [{"content": f"{number}"} for number in range(10 * LONG)]
    shadow = ShadowCopy(history, clock=slow_clock())
    assert shadow.step(history) == []
    history[LONG]["content"] = "changed"
    steps = 0
    while not (ops := shadow.step(history)):
        steps += 1
        assert steps <= 2 * PATIENCE + 2
    assert ops == [["s", f"/{LONG}/content", "changed"]]


@pytest.mark.parametrize(
    "value", [[0] * 3 * LONG, {f"m{at}": 0 for at in range(3 * LONG)}], ids=["list", "dict"]
)
def test_type_of_the_last_element_is_found_at_once_even_by_a_full_comparison_without_types(value):
    # The exact comparison takes so long that only the comparison without types is due.
    clock = map(float, itertools.chain((0, 1000), itertools.count(1001))).__next__
    shadow = ShadowCopy(value, clock=clock)
    shadow.step(value)
    last = len(value) - 1 if type(value) is list else f"m{len(value) - 1}"
    value[last] = False
    assert shadow.step(value) == [["s", f"/{last}", False]]


def test_list_that_changes_at_each_step_does_not_block_the_comparison_of_another():
    rows = [{"content": f"{number}"} for number in range(10 * LONG)]
    value = {"moves": list(range(2 * LONG)), "rows": rows}
    # The first comparison takes ten times as long as later ones, so types are not compared again in this test.
    clock = map(float, itertools.chain((0, 10), itertools.count(11))).__next__
    shadow = ShadowCopy(value, clock=clock)
    shadow.step(value)
    shadow.step(value)
    rows[LONG]["content"] = "changed"
    for _ in range(PATIENCE + 10):
        value["moves"].append(value["moves"].pop(0))
        if ["s", f"/rows/{LONG}/content", "changed"] in shadow.step(value):
            return
    raise AssertionError("the change in the other list was not found")


def test_value_cleared_after_its_last_step_keeps_what_was_yielded():
    history = [{"content": f"{number}"} for number in range(10 * LONG)]
    shadow = ShadowCopy(history, clock=slow_clock())
    for _ in range(4):
        shadow.step(history)
    assert shadow.behind
    history.clear()
    assert shadow.catch_up() == []
