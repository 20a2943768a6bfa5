"""The entries that a store deletes first when it holds too many."""

import random

import pytest

from tidewire_server.store.fair_eviction import FairEviction


def test_the_oldest_entry_of_the_principal_with_the_most_entries_goes_first():
    held = FairEviction[int]()
    for entry, principal in enumerate("abbabbb"):
        held.add(principal, entry)
    assert [held.evict()[1] for _ in range(len(held))] == [1, 2, 4, 0, 5, 3, 6]
    with pytest.raises(LookupError):
        held.evict()


def test_entries_of_an_only_principal_go_in_their_order():
    held = FairEviction[int]()
    for entry in range(5):
        held.add("a", entry)
    held.discard("a", 1)
    held.discard("a", 1)
    held.discard("nobody", 1)
    assert [held.evict() for _ in range(4)] == [("a", 0), ("a", 2), ("a", 3), ("a", 4)]


def test_random_changes_keep_the_order_and_the_number():
    rng, held, expected, newest = random.Random(1), FairEviction[int](), {}, None
    for entry in range(3000):
        match rng.randrange(5):
            case 0 | 1:
                principal = rng.choice("abcdef")
                held.add(principal, entry)
                expected.setdefault(principal, []).append(entry)
                newest = entry
            case 2 if expected:
                principal = rng.choice(sorted(expected))
                gone = rng.choice(expected[principal])
                held.discard(principal, gone)
                expected[principal].remove(gone)
            case 3 if expected:
                (principal, gone), most = held.evict(), max(map(len, expected.values()))
                spared = [name for name, entries in expected.items() if entries == [newest]]
                assert len(expected[principal]) == most or (most == 1 and principal not in spared)
                assert expected[principal].pop(0) == gone
        expected = {name: entries for name, entries in expected.items() if entries}
        assert len(held) == sum(map(len, expected.values()))


def test_the_oldest_entry_of_the_principal_with_the_largest_entries_goes_first():
    held = FairEviction[str]()
    for principal, entry, size in [("a", "a1", 60), ("b", "b1", 10), ("b", "b2", 40), ("b", "b3", 20)]:
        held.add(principal, entry, size)
    assert held.total == 130
    assert held.evict() == ("b", "b1")
    held.resize("a", "a1", 50)
    held.resize("nobody", "a1", 70)
    assert held.evict() == ("b", "b2")
    assert (held.total, len(held)) == (70, 2)


def test_the_newest_entry_stays_until_it_is_alone():
    held = FairEviction[str]()
    for principal, entry, size in [("a", "a1", 1), ("b", "b1", 2), ("c", "c1", 100)]:
        held.add(principal, entry, size)
    assert [held.evict()[1] for _ in range(3)] == ["b1", "a1", "c1"]


def test_changes_without_evictions_need_no_more_memory_than_the_entries():
    held = FairEviction[int]()
    for entry in range(10_000):
        held.add("ab"[entry % 2], entry)
        held.discard("ab"[entry % 2], entry)
    assert len(held._heap) < 100
