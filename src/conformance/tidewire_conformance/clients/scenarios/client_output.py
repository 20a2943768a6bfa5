"""Values and texts that a client delivered, collected from its reports for each item."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from tidewire_conformance.clients.scenarios.scenario import Members


@dataclass
class ClientOutput:
    """Values and text changes that a client delivered to its user, by item index."""

    values: dict[int, list[Any]] = field(default_factory=dict)
    deltas: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    """Text changes of each item. A change is the number of retracted code points and the added text.

    A client that reports only values has no entry here.
    """

    @classmethod
    def of(cls, runs: Iterable[Iterable[Members]]) -> Self:
        """Collect the delivered values from the reports of several commands."""
        output = cls()
        for report in (report for run in runs for report in run):
            index = report.get("index", 0)
            output.values.setdefault(index, []).append(report["value"])
            if "text" in report:
                output.deltas.setdefault(index, []).append((report.get("deleted", 0), report["text"]))
        return output

    def everything(self) -> Iterator[Any]:
        """Yield all delivered values and texts."""
        for values in self.values.values():
            yield from values
        for deltas in self.deltas.values():
            yield from (text for _, text in deltas)

    def text(self, index: int) -> tuple[str, int]:
        """Assemble the text of an item, and count its retracted code points.

        If the client reports only values, the changes are computed from the common prefix of consecutive values.
        """
        text, retracted = "", 0
        for deleted, more in self.deltas.get(index) or self._differences(index):
            retracted += deleted
            text = text[: len(text) - deleted] + more
        return text, retracted

    def _differences(self, index: int) -> Iterator[tuple[int, str]]:
        before = ""
        for value in self.values.get(index, ()):
            now = text_of(value)
            if now is None:
                continue
            common = next(
                (at for at, (old, new) in enumerate(zip(before, now, strict=False)) if old != new),
                min(len(before), len(now)),
            )
            yield len(before) - common, now[common:]
            before = now


def text_of(value: Any) -> str | None:
    """Return the text in a value, or None.

    The text is the value itself if it is a string, and otherwise its member `text`.
    """
    if isinstance(value, dict):
        value = value.get("text")
    return value if isinstance(value, str) else None


def same(one: Any, other: Any) -> bool:
    """Compare two JSON values. The number 1 equals 1.0, but it does not equal true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def printable(text: str) -> str:
    """Escape lone surrogates. A client may report them, but they cannot be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
