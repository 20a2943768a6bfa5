"""The summary of the failures of `tidewire map`."""

from tidewire.commands.map_progress import MAX_REASONS, SHOWN_REASONS, Failures


def test_the_most_frequent_reasons_are_shown_and_the_others_are_counted():
    failures = Failures()
    for index in range(MAX_REASONS + 50):
        failures.add(index, "refused", f"reason {index}")
    failures.add(9999, "refused", "reason\n3")
    first, second, *_, last = failures.summary()
    assert first == f"  50 × other reasons (first at index {MAX_REASONS})"
    assert second == "  2 × refused: reason 3 (first at index 3)"
    assert last == f"  {MAX_REASONS + 51 - 50 - 2 - (SHOWN_REASONS - 2)} × other reasons"
