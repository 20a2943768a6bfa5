"""Display of jobs in the outputs of a Jupyter notebook.

A display reads a separate event stream of the job. The cell therefore ends at once, and the user's own loop over the job still
receives all updates. An output consists of escaped HTML without scripts, and of the same content as plain text.
"""

import asyncio
import contextvars
import math
from collections.abc import Callable
from html import escape
from typing import Any, Final

from tidewire.errors import TidewireError
from tidewire.notebook.cell_output import UPDATE_INTERVAL, Output, drawn, kernel_shell, progress_html
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import ENDED, Progress, Queue
from tidewire.terminal_escapes import visible, visible_json

MAX_OUTPUT_BYTES: Final = 65_536
"""Maximum size in bytes of an output as HTML, and as plain text. Only the end of a longer text is shown."""
MAX_JSON_VALUES: Final = 2_000
"""Maximum number of JSON values in a value that is shown."""
MAX_DISPLAYS: Final = 16
"""Maximum number of displays that are updated at the same time. A new display above this limit stops the oldest one."""

# Maximum numbers of characters of a text. An escaped character has at most 6 bytes, so other parts of the output also fit.
_TEXT, _CELL = 8_000, 100
_VALUE: Final = ("items", "0", "value")
_live: "list[JobDisplay]" = []


def show_job(job: Any, owner: object, start: Callable[[Callable[[], None]], object]) -> None:
    """Show a job in the output of the running cell, and follow it until it ends, without consuming its updates.

    `owner` is the user's job object, which keeps the client's event loop alive. `start` calls a function on this event loop.
    """
    if kernel_shell() is None:
        raise NotImplementedError  # IPython then shows the repr of the job.
    while len(_live) >= MAX_DISPLAYS:
        _live[0].stop(f"stopped, because {MAX_DISPLAYS} other jobs are shown")
    display = JobDisplay(job, owner)
    _live.append(display)
    # Start with an empty context. In the context of this cell, the kernel would label updates as output of this cell, and
    # programs that execute notebooks discard them as soon as the cell has ended.
    try:
        contextvars.Context().run(start, display.start)
    except TidewireError as error:
        display.stop(f"not followed: {error}")


class JobDisplay(Output):
    """The output of one job. The client's event loop draws it. A cell that has waited for the job draws the final state."""

    def __init__(self, job: Any, owner: object) -> None:
        super().__init__()
        self._job, self._owner = job, owner
        self._view: View | None = None
        self._message: Queue | Progress | None = None
        self._tokens: Any = None
        self.redraw()

    def start(self) -> None:
        """Start to follow the job. This method runs on the client's event loop."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self, note: str) -> None:
        """Draw the job for the last time. Further calls have no effect. Any thread may call this method."""
        with self.lock:
            if self in _live:
                _live.remove(self)
                self.redraw(note)

    def repeat(self) -> None:
        # Until the final state has arrived, only the client's event loop may read the state.
        if self._job.last_state is not None:
            self.redraw()
        # A program that executes notebooks has discarded the outputs that were sent between two cells.
        super().repeat()
        drawn.update([self] if self in _live else [])

    async def _follow(self) -> None:
        stream, time = self._job.display_stream(), asyncio.get_running_loop().time
        note = "stopped, because the client was closed"
        try:
            while self in _live and not stream.ended:
                until = time() + UPDATE_INTERVAL
                while time() < until and not stream.ended:
                    for outcome in await stream.next_outcomes(64, until):
                        self._message = getattr(outcome, "message", self._message)
                if (document := stream.follower.document) is not None:
                    self._view = document.view()
                    has_tokens = self._view.node((*_VALUE, "token_ids")) is not None
                    if has_tokens and not self._tokens and hasattr(self._job, "token_rows"):
                        self._tokens = await self._job.token_rows()
                if self in _live:
                    self.redraw()
            note = ""
        except TidewireError as error:
            note = f"no longer followed: {error}"
        finally:
            await stream.aclose()
            self.stop(note)

    def redraw(self, note: str = "") -> None:
        """Draw the state of the job, its progress, its value, its errors and a note. Any thread may call this method."""
        view, message, bar = self._job.last_state or self._view, self._message, ""
        if view is None:
            self.draw(_bold(f"waiting for the server; {note}".rstrip("; ")))
            return
        state = status = str(view.value("/status"))
        lines, value = [_problem(view, "error"), "" if status in ENDED else note], ""
        if (count := view.length("/items")) > 1:
            items = [str(view.value(f"/items/{at}/status")) for at in range(count)]
            bar = progress_html(ended := sum(one in ENDED for one in items), count)
            state += f" · {ended} of {count} items have ended, {items.count('failed')} failed"
        else:
            value = self._value(view)
            lines.append(_problem(view, "items", "0", "error"))
        if isinstance(message, Queue) and status == "queued":
            state += f" · position {message.position}"
        elif isinstance(message, Progress) and status not in ENDED:
            bar = bar or progress_html(message.current, message.total)
            done = " of ".join(f"{each:g}" for each in (message.current, message.total) if each is not None)
            state += " · " + " ".join(part[:_CELL] for part in (message.phase, done, message.unit) if part)
        html = f"<div>{_bold(state)} {bar} <small>job <code>{escape(visible(self._job.id[:_CELL]))}</code></small></div>{value}"
        self.draw(html + "".join(f"<div>{_bold(line[:300])}</div>" for line in dict.fromkeys(lines) if line))

    def _value(self, view: View) -> str:
        """Return HTML for the value of a job with one item: its newest tokens or, without tokens, its text or JSON."""
        shown = ""
        for token in reversed(self._tokens.newest(view, 1_000) if self._tokens else ()):
            if len(shown.encode()) > MAX_OUTPUT_BYTES - 12_000:
                break
            shown = _token(token) + shown
        shown = shown or escape(_text(view))
        return f'<div><pre style="white-space:pre-wrap;font-family:monospace">{shown}</pre></div>'


def _bold(text: str) -> str:
    return f"<b>{escape(visible(text))}</b>"


def _problem(view: View, *place: str) -> str:
    node = view.node(place)
    return f"{node.get('detail') or node.get('title')} [{node.get('code')}]" if type(node) is dict else ""


def _token(token: Any) -> str:
    """Return HTML for a token. Less probable tokens have a stronger background. The text keeps the page's color."""
    shown = [(token.text, token.logprob or 0.0), *((one.text, one.logprob) for one in token.alternatives[:5])]
    title = "\n".join(f"{visible(text[:20])!r} {math.exp(min(0, logprob)):.1%}" for text, logprob in shown)
    style = f"background-color:rgba(230,119,0,{max(0, min(0.7, -shown[0][1] / 8)):.2f})"
    return f'<span title="{escape(title)}" style="{style}">{escape(visible(token.text[:_CELL]))}</span>'


def _text(view: View) -> str:
    """Return the end of the text or, without a text, of the value as JSON, with at most `_TEXT` characters."""
    for place in (_VALUE, (*_VALUE, "text")):
        if length := view.text_length(place):
            node, start = view.node(place), max(0, length - _TEXT)
            text = visible(node[start:] if isinstance(node, str) else node.text_since(start))[-_TEXT:]
            return f"… {text}" if start else text
    if View([view.node(_VALUE)], view.version).has_more_nodes_than(MAX_JSON_VALUES):
        return f"(more than {MAX_JSON_VALUES:,} JSON values)"
    is_empty = view.node(_VALUE) is None or view.value("/items/0/value") == ""
    text = "" if is_empty else visible_json(view.value("/items/0/value"), indent=2)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} …"
