"""Display of jobs in the outputs of a Jupyter notebook.

A job that is shown is followed over a separate event stream, so that the cell ends at once and the user's own loop over
the job still receives all updates. An output is escaped HTML without scripts, and the same content as plain text.
"""

import asyncio
import contextvars
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from typing import Any, Final

from tidewire.errors import TidewireError
from tidewire.notebook.cell_output import (
    UPDATE_INTERVAL,
    Output,
    call_after_cells,
    kernel_shell,
    progress_html,
)
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import ENDED, Progress, Queue
from tidewire.terminal_escapes import visible, visible_json

MAX_OUTPUT_BYTES: Final = 65_536
"""Maximum size of each of the two formats of an output, in bytes. Only the end of a longer text is shown."""
MAX_JSON_VALUES: Final = 2_000
"""Maximum number of JSON values in a value that is shown."""
MAX_DISPLAYS: Final = 16
"""Maximum number of jobs that are followed at a time. One more stops the display of the oldest."""

# An escaped character has at most 6 bytes, so that a text or a table of this size leaves room for all other parts.
_TEXT, _ROWS, _CELL = 8_000, 80, 100
_live: "list[JobDisplay]" = []


def show_job(job: Any, owner: object, start: Callable[[Callable[[], None]], object]) -> None:
    """Show a job in the output of the running cell, and follow it until it ends, without consuming its updates.

    `owner` is the user's object, which keeps the client's event loop alive, and `start` calls a function on this loop.

    Raises:
        NotImplementedError: No kernel runs this program. IPython then shows the repr of the job.
    """
    if kernel_shell() is None:
        raise NotImplementedError
    while len(_live) >= MAX_DISPLAYS:
        _live[0].close(f"stopped, because {MAX_DISPLAYS} other jobs are shown")
    display = JobDisplay(job, owner)
    _live.append(display)
    call_after_cells(_after_cell)
    # Start with an empty context. In the context of this cell, the kernel would label updates as output of this cell, and
    # programs that execute notebooks discard them as soon as the cell has ended.
    try:
        contextvars.Context().run(start, display.start)
    except TidewireError as error:
        display.close(f"not followed: {error}")


def _after_cell(result: Any) -> None:
    """Draw the end of jobs for which the cell has waited, and stop all displays if the cell was interrupted."""
    interrupted = isinstance(result.error_in_exec, KeyboardInterrupt | asyncio.CancelledError)
    for display in [*_live]:
        if (state := display.job.last_state) is not None:
            display.draw(state)
        elif interrupted:
            display.close("display interrupted; the job continues on the server")


class JobDisplay:
    """The output of one job. The client's event loop draws it, and so does a cell that has waited for the job's end."""

    def __init__(self, job: Any, owner: object) -> None:
        self.job = job
        self._owner: object = owner
        self._view: View | None = None
        self._message: Queue | Progress | None = None
        self._newest_tokens: Callable[[View, int], Sequence[Any]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._output = Output()
        self.draw()

    def start(self) -> None:
        """Start to follow the job. This method runs on the client's event loop."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def close(self, note: str, view: View | None = None) -> None:
        """Draw the job for the last time, on any thread. Calls after the first one have no effect."""
        with self._output.lock:
            if self not in _live:
                return
            _live.remove(self)
            last = self.job.last_state
            self.draw(last or view, note if last is None else "")
        if self._task is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def _follow(self) -> None:
        stream = self.job.display_stream()
        reading = asyncio.create_task(self._read(stream))
        wait, last, note = UPDATE_INTERVAL, None, "stopped, because the client was closed"
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=wait)
                began, now = time.monotonic(), (stream.follower.cursor, self._message, stream.reconnecting)
                with self._output.lock:
                    if now != last and self in _live:
                        lost = "connection lost, reconnecting" if stream.reconnecting else ""
                        self.draw(self.job.last_state or stream.view, lost)
                # Spend at most a tenth of the time on drawing.
                last, wait = now, max(UPDATE_INTERVAL, 9 * (time.monotonic() - began))
            reading.result()
            note = ""
        except TidewireError as error:
            note = f"no longer followed: {error}"
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await stream.aclose()
            self.close(note, stream.view)

    async def _read(self, stream: Any) -> None:
        while not stream.ended:
            for outcome in await stream.next_outcomes(64):
                self._message = getattr(outcome, "message", self._message)
            if self._newest_tokens is None and stream.view is not None:
                with suppress(TidewireError):
                    self._newest_tokens = await self.job.token_reader(stream.view)

    def draw(self, view: View | None = None, note: str = "") -> None:
        """Draw a state of the job, or else the one that was drawn last, on any thread."""
        self._view = view = view or self._view
        message, notes, plain, html = self._message, [note], "", ""
        status = "waiting for the server" if view is None else str(view.value("/status"))
        parts, bar = [status], ""
        if isinstance(message, Queue) and status == "queued":
            parts.append(f"position {message.position}")
        elif isinstance(message, Progress) and status not in ENDED:
            current, total, bar = (
                message.current,
                message.total,
                progress_html(message.current, message.total),
            )
            count = "" if current is None else f"{current:g}" + ("" if total is None else f" of {total:g}")
            named = (message.phase or "", f"{count} {message.unit or ''}".strip())
            parts += [part[:_CELL] for part in named if part]
        first, name = visible(" · ".join(parts)), visible(self.job.id[:_CELL])
        if view is not None:
            is_batch = view.length("/items") > 1
            notes += [_problem(view, "error"), "" if is_batch else _problem(view, "items", "0", "error")]
            plain, html = _items(view) if is_batch else self._value(view)
        lines = [visible(note[:300])[:300] for note in dict.fromkeys(notes) if note]
        html += "".join(f"<div><b>{escape(line)}</b></div>" for line in lines)
        head = f"<div><b>{escape(first)}</b> {bar} <small>job <code>{escape(name)}</code></small></div>"
        self._output.draw(head + html, "\n".join(filter(None, [f"job {name}: {first}", plain, *lines])))

    def _value(self, view: View) -> tuple[str, str]:
        """Return the value of a job with one item, as text or JSON, and as HTML with its newest tokens, if it has any."""
        plain, drawn, budget = _text(view, 0), [], MAX_OUTPUT_BYTES - 12_000
        for token in reversed(self._newest_tokens(view, 1_000) if self._newest_tokens else ()):
            drawn.append(_token(token) if budget > 0 else "")
            budget -= len(drawn[-1].encode())
        html = "".join(reversed(drawn)) or escape(plain)
        return plain, f'<pre style="white-space:pre-wrap;font-family:monospace">{html}</pre>' if html else ""


def _problem(view: View, *place: str) -> str:
    node = view.node(place)
    return f"{node.get('detail') or node.get('title')} [{node.get('code')}]" if type(node) is dict else ""


def _token(token: Any) -> str:
    """Shade a token by its surprise. The text keeps the color of the page, which may be dark or light."""
    shown = [(token.text, token.logprob or 0.0), *((one.text, one.logprob) for one in token.alternatives[:5])]
    title = "\n".join(f"{visible(text[:20])!r} {math.exp(min(0, logprob)):.1%}" for text, logprob in shown)
    style = f"background-color:rgba(230,119,0,{max(0, min(0.7, -shown[0][1] / 8)):.2f})"
    return f'<span title="{escape(title)}" style="{style}">{escape(visible(token.text[:_CELL]))}</span>'


def _items(view: View) -> tuple[str, str]:
    """Return the items of a batch as lines and as an HTML table, after the number of items that have ended."""
    count = view.length("/items")
    statuses = [str(view.value(f"/items/{index}/status")) for index in range(count)]
    ended, failed = sum(one in ENDED for one in statuses), statuses.count("failed")
    summary = f"{ended} of {count} items have ended" + (f", {failed} failed" if failed else "")
    more = f"… {count - _ROWS} more items" if count > _ROWS else ""
    plain, table = [summary], ""
    for index, status in enumerate(statuses[:_ROWS]):
        problem = visible(_problem(view, "items", str(index), "error"))
        text = " ".join((problem or _text(view, index)).split())
        cell = text if len(text) <= _CELL else f"{text[: _CELL // 2]} … {text[3 - _CELL // 2 :]}"
        plain.append(f"{index:>6}  {status:<10} {cell}")
        table += f'<tr><td>{index}</td><td>{escape(status)}</td><td style="text-align:left">{escape(cell)}</td></tr>'
    html = f"<div>{summary}</div><table>{table}</table><div>{more}</div>"
    return "\n".join(filter(None, [*plain, more])), html


def _text(view: View, index: int) -> str:
    """Return the end of an item's text, or else its value as JSON, with at most `_TEXT` characters."""
    value = ("items", str(index), "value")
    for place in (value, (*value, "text")):
        if length := view.text_length(place):
            node, start = view.node(place), max(0, length - _TEXT)
            text = visible(node[start:] if isinstance(node, str) else node.text_since(start))[-_TEXT:]
            return f"… {text}" if start else text
    if View([view.node(value)], view.version).has_more_nodes_than(MAX_JSON_VALUES):
        return f"(more than {MAX_JSON_VALUES:,} JSON values)"
    found = None if view.node(value) is None else view.value(f"/items/{index}/value")
    return "" if found is None or found == "" else visible_json(found, indent=2)[:_TEXT]
