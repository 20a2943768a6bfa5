"""Round trip of diffs: `apply(a, diff(a, b))` equals `b` for any two JSON values, including types."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.random_json import canonical_text, random_change_of, random_value
from tidewire.protocol.diff import apply, diff
from tidewire.protocol.document.json_pointer import build, parse

PAIRS = 10_000
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 11))]
"""100,000 pairs in total. Runs without slow tests check a tenth of them."""

EXAMPLES = 200

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, 0.0, -0.0, 1, 1.0, ""])
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", SEEDS)
def test_diff_of_random_values_is_applied_to_the_target(seed):
    draw = random.Random(seed)
    for n in range(PAIRS):
        old = random_value(draw)
        new = random_value(draw) if n % 3 == 0 else random_change_of(draw, old)
        before, target = canonical_text(old), canonical_text(new)
        ops = diff(old, new)
        assert canonical_text(apply(old, ops)) == target, (old, new, ops)
        assert (canonical_text(old), canonical_text(new)) == (before, target)
        assert (ops == []) == (before == target)


@pytest.mark.parametrize("count", [1_000, pytest.param(6_000, marks=pytest.mark.slow)])
def test_diff_of_lists_with_many_equal_elements_is_applied_to_the_target(count):
    draw = random.Random(3)
    for _ in range(count):
        old = [draw.choice([0, 0.0, "a", [1], [1.0], {"a": "text"}]) for _ in range(draw.randrange(60))]
        new = [x for x in old if draw.random() > 0.2]
        for _ in range(draw.randrange(12)):
            new.insert(
                draw.randrange(len(new) + 1), draw.choice([0, -0.0, "a", "ab", [1], {"a": "text more"}])
            )
        assert canonical_text(apply(old, diff(old, new))) == canonical_text(new)


@pytest.mark.heavy
@settings(max_examples=EXAMPLES, deadline=None)
@given(values, values)
def test_diff_of_any_two_values_is_applied_to_the_target(old, new):
    assert canonical_text(apply(old, diff(old, new))) == canonical_text(new)


@settings(max_examples=EXAMPLES // 5, deadline=None)
@given(st.lists(texts, max_size=5))
def test_any_tokens_survive_a_round_trip_through_a_pointer(tokens):
    assert parse(build(tokens)) == tuple(tokens)
