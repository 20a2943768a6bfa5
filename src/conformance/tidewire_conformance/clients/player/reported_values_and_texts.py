"""What a client handed over in all: the values of each item, and its text put together from what it told."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from tidewire_conformance.clients.player.scenario import Members


@dataclass
class ClientOutput:
    """Values and texts by item."""

    values: dict[int, list[Any]] = field(default_factory=dict)
    deltas: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    """Code points that became void, and the text that came: only where the client tells them."""

    @classmethod
    def of(cls, runs: Iterable[Iterable[Members]]) -> Self:
        """Gather the reports of all runs."""
        told = cls()
        for report in (report for run in runs for report in run):
            index = report.get("index", 0)
            told.values.setdefault(index, []).append(report["value"])
            if "text" in report:
                told.deltas.setdefault(index, []).append((report.get("deleted", 0), report["text"]))
        return told

    def everything(self) -> Iterator[Any]:
        """All that was handed over."""
        for values in self.values.values():
            yield from values
        for deltas in self.deltas.values():
            yield from (text for _, text in deltas)

    def text(self, index: int) -> tuple[str, int]:
        """The text of an item, put together, and how many code points became void.

        Where a client tells values alone, what became void is what two values that follow each other do not share.
        """
        text, void = "", 0
        for deleted, more in self.deltas.get(index) or self._differences(index):
            void += deleted
            text = text[: len(text) - deleted] + more
        return text, void

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
    """The text of a value: itself, or its member `text`."""
    if isinstance(value, dict):
        value = value.get("text")
    return value if isinstance(value, str) else None


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def printable(text: str) -> str:
    """Text that any report can hold: what a client tells may hold lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()
