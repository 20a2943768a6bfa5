"""`ShadowCopy` on a value that changes at each step: each step finds all changes, whatever the length of the value."""

import copy
import json
import random
from typing import Any

import pytest

from tidewire.protocol.diff import apply
from tidewire_server.job_log.value_differ import ShadowCopy

TEXTS = ("", "a", "né", "🎉🎉", "x" * 40, "1")
SCALARS = (*TEXTS, 0, 1, 1.0, True, False, None, -0.0, 0.0, 2.5)


LONG = 64
"""Arrays of more elements are compared in blocks of this length."""


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


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 100))]
)
def test_each_step_finds_all_changes(seed):
    writer = Writer(seed)
    shadow = ShadowCopy(None)
    known = None
    for _ in range(30):
        value = writer.step()
        known = apply(known, copy.deepcopy(shadow.step(value)))
        assert canonical(known) == canonical(value)
        assert shadow.step(value) == []


@pytest.mark.parametrize("seed", range(10))
def test_the_same_values_give_the_same_ops(seed):
    runs = []
    for _ in range(2):
        writer, shadow = Writer(seed), ShadowCopy(None)
        runs.append([copy.deepcopy(shadow.step(writer.step())) for _ in range(30)])
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "old", [[0] * 3 * LONG, {f"m{at}": 0 for at in range(3 * LONG)}], ids=["list", "dict"]
)
@pytest.mark.parametrize("index", [0, LONG + 1, 3 * LONG - 1])
@pytest.mark.parametrize("element", [False, -0.0, 0.0, None, "0"])
def test_type_of_one_element_of_many_is_found_at_once(old, index, element):
    shadow = ShadowCopy(old)
    value = copy.deepcopy(old)
    assert shadow.step(value) == []
    place = index if type(value) is list else f"m{index}"
    value[place] = element
    ops = shadow.step(value)
    assert [op[:2] for op in ops] == [["s", f"/{place}"]]
    assert json.dumps(ops[0][2]) == json.dumps(element)


def test_nan_in_place_of_null_is_found():
    value = [None] * 3 * LONG
    shadow = ShadowCopy(value)
    value[LONG] = float("nan")
    assert [op[1] for op in shadow.step(value)] == [f"/{LONG}"]
