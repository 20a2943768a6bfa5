"""Build the responses of OpenAI's Responses API, as whole objects or as events of a stream (`ResponseWriter`).

The `sequence_number` of an event is computed from its position in the text, so that a stream can be resumed from the state
of the job alone. The numbers increase, with gaps. `length` is the length of the text up to the event, in code points:

event                                | number
-------------------------------------+--------------------------------------------------------------------------------
before the text                      | 0 to 4
`response.output_text.delta`         | `length << CRC_BITS`, plus the lowest bits of the CRC-32 of the text up to there
after the text                       | `length + 1 << CRC_BITS`, plus 0 to 3

When a client resumes, the CRC shows whether the text that it has received is still the beginning of the job's text. The text
can differ if the job ran again from the start. Some clients require numbers below 2**31. `CRC_BITS` is therefore so small
that a text of a million code points stays below this bound. About one in 2048 differing texts is not detected.
"""

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from tidewire_server.openai.completion_objects import sse_frame, usage_of
from tidewire_server.openai.text_progress import RetractedError, TextChange
from tidewire_server.openai.token_logprobs import TokenBytes, TokenRow
from tidewire_server.store.records import JobRecord

ID_PREFIX: Final = "resp_"
"""Prefix of the id of a response. The id of the job follows."""

CRC_BITS: Final = 11
_MASK: Final = (1 << CRC_BITS) - 1

_STATUSES: Final = {"running": "in_progress", "succeeded": "completed"}
"""Status of a job → status of its response. All other statuses have the same name in both."""


class ResponseWriter:
    """Writes a response: one object, or the events of a stream."""

    def __init__(
        self,
        record: JobRecord,
        model: str,
        tokens: TokenBytes | None,
        *,
        background: bool | None = None,
        after: int = -1,
    ) -> None:
        """Create a writer. `tokens` is needed only if log-probabilities were requested. `background` is None if the value in
        the request is no longer known. Only events with a `sequence_number` above `after` are written.
        """
        self._record = record
        self._model = model
        self._tokens = tokens
        self._background = background
        self.after = after
        self._message_id = f"msg_{record.id}"
        self._at_part = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        self._length = self._crc = 0
        self._pieces: list[str] = []
        self._rows: list[TokenRow] = []
        self._item: dict[str, Any] | None = None

    def response(
        self, status: str, whole: TextChange | None = None, record: JobRecord | None = None
    ) -> dict[str, Any]:
        """Build the response object from the job's status, its whole text and, if the job has ended, its record."""
        status = _STATUSES.get(status, status)
        if status == "completed" and whole is not None and whole.finish_reason == "length":
            status = "incomplete"
        usage = None if record is None else usage_of(record, 1)
        error = whole.item["error"] if whole is not None and whole.item is not None else None
        return {
            "id": f"{ID_PREFIX}{self._record.id}",
            "object": "response",
            "created_at": int(self._record.created_at),
            "status": status,
            "background": self._background,
            "error": error and {"code": "server_error", "message": error.get("detail") or error["title"]},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "metadata": {},
            "model": self._model,
            "output": [] if whole is None else [self._message(status, [self._part(whole.text, whole.rows)])],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage
            and {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }

    # ---- events ------------------------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """Return the events before the first text."""
        item = {"output_index": 0, "item": self._message("in_progress", [])}
        return self._events(
            0,
            ("response.created", {"response": self.response("queued")}),
            ("response.queued", {"response": self.response("queued")}),
            ("response.in_progress", {"response": self.response("running")}),
            ("response.output_item.added", item),
            ("response.content_part.added", self._at_part | {"part": self._part("", [])}),
        )

    def change(self, change: TextChange) -> bytes:
        """Return the events for text that was added. Raise a `RetractedError` if the job's text no longer begins with the
        text that the client has received.
        """
        if not self._length and self.after > _MASK:
            change = self._without_received(change)
        self._item = change.item
        self._add(change.text, change.rows)
        if not change.text:
            return b""
        number = (self._length << CRC_BITS) + (self._crc & _MASK)
        delta = {"delta": change.text, "logprobs": self._logprobs(change.rows)}
        return self._events(number, ("response.output_text.delta", self._at_part | delta))

    def end(self, record: JobRecord) -> bytes:
        """Return the events after the text of a job that has succeeded."""
        whole = self._whole()
        response = self.response(record.status, whole, record)
        (message,) = response["output"]
        done = {"text": whole.text, "logprobs": self._logprobs(whole.rows)}
        return self._events(
            (self._length + 1) << CRC_BITS,
            ("response.output_text.done", self._at_part | done),
            ("response.content_part.done", self._at_part | {"part": message["content"][0]}),
            ("response.output_item.done", {"output_index": 0, "item": message}),
            (f"response.{response['status']}", {"response": response}),
        )

    def fail(self, error: dict[str, Any]) -> bytes:
        """Return the last events of a stream that ends with an error."""
        frames = b""
        if self._item is not None and self._item["status"] == "failed":
            response = self.response("failed", self._whole())
            frames = self._events((self._length + 1) << CRC_BITS, ("response.failed", {"response": response}))
        return frames + sse_frame(error)

    def _events(self, first: int, *events: tuple[str, dict[str, Any]]) -> bytes:
        return b"".join(
            sse_frame({"type": kind, "sequence_number": number, **members}, kind)
            for number, (kind, members) in enumerate(events, first)
            if number > self.after
        )

    def _without_received(self, change: TextChange) -> TextChange:
        """Remove the text that the client already has from the first change of a resumed stream. See `change`."""
        received, crc_bits, length = self.after >> CRC_BITS, self.after & _MASK, len(change.text)
        if (
            change.item is not None and received == length + 1
        ):  # The client has received an event after the text.
            received, crc_bits = length, _crc_of(change.text) & _MASK
        before = change.text[:received]
        if received > length or _crc_of(before) & _MASK != crc_bits:
            raise RetractedError
        rows = [row for row in change.rows if row.offset < received]
        self._add(before, rows)
        return change._replace(text=change.text[received:], rows=change.rows[len(rows) :])

    def _add(self, text: str, rows: Sequence[TokenRow]) -> None:
        self._pieces.append(text)
        self._rows += rows
        self._length += len(text)
        self._crc = _crc_of(text, self._crc)

    # ---- parts -------------------------------------------------------------------------------------------------

    def _whole(self) -> TextChange:
        return TextChange(0, "".join(self._pieces), self._rows, self._item)

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        status = status if status in {"completed", "in_progress"} else "incomplete"
        message = {"id": self._message_id, "type": "message", "status": status, "role": "assistant"}
        return message | {"content": content}

    def _part(self, text: str, rows: Sequence[TokenRow]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs(rows)}

    def _logprobs(self, rows: Sequence[TokenRow]) -> list[dict[str, Any]]:
        return [] if self._tokens is None else [self._tokens.chat_logprob(row) for row in rows]


def _crc_of(text: str, before: int = 0) -> int:
    return crc32(text.encode(), before)
