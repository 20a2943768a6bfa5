"""Tokens of a job whose text may be rolled back: held back until they are stable, and bounded in memory."""

import asyncio
from random import Random

import pytest

from tidewire.errors import NOWHERE, VoidTextError
from tidewire.jobs.generated_tokens import TokenRows, Vocabulary
from tidewire.jobs.streamed_text import MAX_HELD
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.result_type import ResultType
from tidewire.updates import ItemChange, Position

TEXT, IDS = "/items/0/value/text", "/items/0/value/token_ids"
COLUMNS = (TEXT, IDS)


def document(**members):
    value = {"text": "", "token_ids": [], "finish_reason": None}
    return Document({"items": [{"status": "running", "value": value} | members]}, COLUMNS)


def rows():
    async def vocabulary():
        return Vocabulary("h", tuple(b"%d " % each for each in range(100)))

    found = TokenRows(text=lambda _position: TEXT, vocabulary=vocabulary, where=NOWHERE)
    asyncio.run(found.prepare())
    return found


def change(of, seq):
    return ItemChange(Position(of.view(), COLUMNS, Cursor(1, seq)), ResultType(None), seq)


def ids(tokens):
    return [token.id for token in tokens]


def text_of(tokens):
    """Text of some token ids. Tokens with an even id have no text, like the first bytes of a character."""
    return "".join("xy" for each in tokens if each % 2)


@pytest.mark.parametrize("seed", range(20))
def test_yielded_tokens_are_never_retracted_and_complete_at_the_end(seed):
    random, of, found, yielded, stable = Random(seed), document(stable={"/text": 0}), rows(), [], 0
    for seq in range(2, 120):
        kept = of.value(IDS)
        while kept and random.random() < 0.6 and len(text_of(kept[:-1])) >= stable:
            kept.pop()
        retracted = of.value(IDS)[len(kept) :]
        new = [random.randrange(100) for _ in range(random.randrange(4))]
        stable = random.randrange(stable, len(text_of(kept + new)) + 1) // 2 * 2
        of.apply(
            [
                ["t", TEXT, len(text_of(retracted))],
                ["t", IDS, len(retracted)],
                *(["r", text_of([each]), each] for each in new),
                ["s", "/items/0/stable", {"/text": stable}],
            ]
        )
        yielded += ids(found.project(change(of, seq)))
        assert of.value(IDS)[: len(yielded)] == yielded
        assert not yielded or len(text_of(yielded)) < stable
    assert yielded
    assert yielded + ids(found.finish()) == of.value(IDS)


def test_held_states_are_bounded():
    of, found = document(stable={"/text": 0}), rows()
    for seq in range(2, 3 * MAX_HELD):
        of.apply([["r", "xy", 1]])
        assert found.project(change(of, seq)) == ()
        assert len(found._held) <= MAX_HELD
    length = len(of.value(TEXT))
    of.apply([["s", "/items/0/stable", {"/text": length // 2}]])
    # Where states were dropped, fewer tokens are released, but most of the stable ones are.
    released = ids(found.project(change(of, 3 * MAX_HELD)))
    assert length // 8 < len(released) < length // 4
    assert released + ids(found.finish()) == of.value(IDS)


@pytest.mark.parametrize("again", [[], [1, 2], [1, 7, 3, 4, 5]])
def test_a_state_that_does_not_begin_with_the_yielded_tokens_raises(again):
    """The states between two reads may be skipped, so the new attempt may already have more tokens than the first."""
    of, found = document(), rows()
    of.apply([["r", "a", 1], ["r", "b", 2], ["r", "c", 3]])
    assert ids(found.project(change(of, 2))) == [1, 2, 3]
    new = document()
    new.apply([["r", "x", each] for each in again])
    with pytest.raises(
        VoidTextError, match="retracted tokens that this iterator had already yielded"
    ) as caught:
        found.project(change(new, 3))
    assert "job.tokens() again" in caught.value.advice


def test_the_same_tokens_from_a_new_attempt_continue():
    of, found = document(), rows()
    of.apply([["r", "a", 1], ["r", "b", 2]])
    assert ids(found.project(change(of, 2))) == [1, 2]
    new = document()
    new.apply([["r", "a", 1], ["r", "b", 2], ["r", "c", 3]])
    assert ids(found.project(change(new, 3))) == [3]
