"""The entries that a store deletes first when it holds too many."""

import random

import pytest

from tidewire_server.store.fair_eviction import FairEviction


def test_the_oldest_entry_of_the_principal_with_the_most_entries_goes_first():
    held = FairEviction[int]()
    for entry, principal in enumerate("abbabbb"):
        held.add(principal, entry)
    assert [held.evict() for _ in range(len(held))] == [1, 2, 4, 0, 5, 3, 6]
    with pytest.raises(LookupError):
        held.evict()


def test_entries_of_an_only_principal_go_in_their_order():
    held = FairEviction[int]()
    for entry in range(5):
        held.add("a", entry)
    held.discard("a", 1)
    held.discard("a", 1)
    held.discard("nobody", 1)
    assert [held.evict() for _ in range(4)] == [0, 2, 3, 4]


def test_random_changes_keep_the_order_and_the_number():
    rng, held, expected = random.Random(1), FairEviction[int](), {}
    for entry in range(3000):
        match rng.randrange(5):
            case 0 | 1:
                principal = rng.choice("abcdef")
                held.add(principal, entry)
                expected.setdefault(principal, []).append(entry)
            case 2 if expected:
                principal = rng.choice(sorted(expected))
                gone = rng.choice(expected[principal])
                held.discard(principal, gone)
                expected[principal].remove(gone)
            case 3 if expected:
                gone, most = held.evict(), max(map(len, expected.values()))
                [principal] = [name for name, entries in expected.items() if gone in entries]
                assert len(expected[principal]) == most
                assert expected[principal].pop(0) == gone
        expected = {name: entries for name, entries in expected.items() if entries}
        assert len(held) == sum(map(len, expected.values()))


@pytest.mark.parametrize("seed", range(3))
def test_replacing_gives_the_same_entries_as_adding_and_evicting(seed):
    rng, replaced, evicted = random.Random(seed), FairEviction[int](), FairEviction[int]()
    for entry in range(600):
        principal = rng.choice("aaab" if entry % 100 < 50 else "abcd")
        if entry < 20:
            replaced.add(principal, entry)
            evicted.add(principal, entry)
        else:
            evicted.add(principal, entry)
            assert replaced.replace(principal, entry) == evicted.evict()
    assert [replaced.evict() for _ in range(len(replaced))] == [evicted.evict() for _ in range(len(evicted))]
