"""Responses (`ResponseWriter`): the object, and the events of its stream, whose numbers do not depend on the connection.

The `sequence_number` of an event is computed from its position in the text, so that a resume needs only the state of the job.
Numbers rise, with gaps. `length` is the length of the text up to the event, in code points:

event                                | number
-------------------------------------+--------------------------------------------------------------------------------
before the text                      | 0 to 4
`response.output_text.delta`         | `length << CRC_BITS`, plus the lowest bits of the CRC-32 of the text up to there
after the text                       | `length + 1 << CRC_BITS`, plus 0 to 3

The CRC shows whether the text that a client has received is still the beginning of the text, for example after the job ran
again from the start. `CRC_BITS` is small, so that the number of an event up to a length of a million is below 2**31, as some
clients require. A text that differs is therefore accepted once in 2048 cases.
"""

from collections.abc import Iterator, Sequence
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


class ResponseWriter:
    """Writes a response: one object, or the events of a stream."""

    def __init__(
        self,
        record: JobRecord,
        model: str,
        tokens: TokenBytes | None,
        *,
        background: bool | None,
        after: int = -1,
    ) -> None:
        """Create a writer.

        Args:
            record: Record of the job.
            model: Name of the model in the result.
            tokens: Bytes of the tokens, if log-probabilities were requested.
            background: Whether the job runs without a reader. None if it is not known any more.
            after: Number of the last event that the client has received. Later events are written.
        """
        self._record = record
        self._model = model
        self._tokens = tokens
        self._background = background
        self._after = after
        self._length = 0
        self._crc = 0
        self._pieces: list[str] = []
        self._rows: list[TokenRow] = []
        self._last: TextChange | None = None

    def response(
        self, status: str, change: TextChange | None = None, record: JobRecord | None = None
    ) -> dict[str, Any]:
        """Return the response as an object.

        Args:
            status: Status of the job.
            change: The whole text. None if the response shall not have it.
            record: Record of the job, if it has ended.
        """
        finish = change.item["value"]["finish_reason"] if change is not None and change.item else None
        shown = {"succeeded": "incomplete" if finish == "length" else "completed", "running": "in_progress"}.get(
            status, status
        )
        usage = None if record is None else usage_of(record, 1)
        error = change.item["error"] if change is not None and change.item else None
        return {
            "id": f"{ID_PREFIX}{self._record.id}",
            "object": "response",
            "created_at": int(self._record.created_at),
            "status": shown,
            "background": self._background,
            "error": None if error is None else {"code": "server_error", "message": error.get("detail", error["title"])},
            "incomplete_details": {"reason": "max_output_tokens"} if shown == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "model": self._model,
            "output": [] if change is None else [self._message(shown, change.text, change.rows)],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
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

    def begin(self) -> Iterator[bytes]:
        """See `EventWriter`."""
        place = {"output_index": 0}
        begun = (
            ("response.created", {"response": self.response("queued")}),
            ("response.queued", {"response": self.response("queued")}),
            ("response.in_progress", {"response": self.response("running")}),
            ("response.output_item.added", place | {"item": self._message("in_progress", None)}),
            ("response.content_part.added", self._at_part() | {"part": self._part("", [])}),
        )
        for number, (kind, members) in enumerate(begun):
            yield from self._event(number, kind, members)

    def change(self, change: TextChange) -> Iterator[bytes]:
        """See `EventWriter`."""
        self._last = change
        if self._length == 0 and self._after > _MASK:
            change = self._without_received(change)
        self._add(change.text, change.rows)
        if change.text:
            number = (self._length << CRC_BITS) + (self._crc & _MASK)
            members = self._at_part() | {"delta": change.text, "logprobs": self._logprobs(change.rows)}
            yield from self._event(number, "response.output_text.delta", members)

    def _without_received(self, change: TextChange) -> TextChange:
        """Return the first change without the text that the client has received before.

        Raises:
            RetractedError: The text does not begin with that text.
        """
        received, crc_bits = self._after >> CRC_BITS, self._after & _MASK
        length = len(change.text)
        if change.item is not None and received == length + 1:  # The client has received an event after the text.
            received, crc_bits = length, crc_of(change.text) & _MASK
        before = change.text[:received]
        if received > length or crc_of(before) & _MASK != crc_bits:
            raise RetractedError
        rows = [] if self._tokens is None else self._tokens.rows_of(change.rows, received)
        self._add(before, rows)
        return change._replace(text=change.text[received:], rows=change.rows[len(rows) :])

    def _add(self, text: str, rows: Sequence[TokenRow]) -> None:
        self._pieces.append(text)
        self._rows += rows
        self._length += len(text)
        self._crc = crc_of(text, self._crc)

    def _whole(self) -> TextChange:
        return TextChange(0, "".join(self._pieces), self._rows, self._last.item if self._last else None)

    def end(self, record: JobRecord) -> Iterator[bytes]:
        """See `EventWriter`."""
        whole = self._whole()
        response = self.response(record.status, whole, record)
        part = self._at_part()
        ended = (
            ("response.output_text.done", part | {"text": whole.text, "logprobs": self._logprobs(self._rows)}),
            ("response.content_part.done", part | {"part": response["output"][0]["content"][0]}),
            ("response.output_item.done", {"output_index": 0, "item": response["output"][0]}),
            (f"response.{response['status']}", {"response": response}),
        )
        for number, (kind, members) in enumerate(ended, (self._length + 1) << CRC_BITS):
            yield from self._event(number, kind, members)

    def fail(self, error: dict[str, Any], failed: TextChange | None) -> Iterator[bytes]:
        """See `EventWriter`."""
        if failed is not None and failed.item is not None and failed.item["status"] == "failed":
            response = self.response("failed", self._whole()._replace(item=failed.item))
            yield from self._event((self._length + 1) << CRC_BITS, "response.failed", {"response": response})
        yield sse_frame(error)

    def _event(self, number: int, kind: str, members: dict[str, Any]) -> Iterator[bytes]:
        if number > self._after:
            yield sse_frame({"type": kind, "sequence_number": number, **members}, kind)

    # ---- parts -------------------------------------------------------------------------------------------------

    @property
    def _message_id(self) -> str:
        return f"msg_{self._record.id}"

    def _at_part(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _message(self, status: str, text: str | None, rows: Sequence[TokenRow] = ()) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "status": status if status in {"completed", "in_progress"} else "incomplete",
            "role": "assistant",
            "content": [] if text is None else [self._part(text, rows)],
        }

    def _part(self, text: str, rows: Sequence[TokenRow]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs(rows)}

    def _logprobs(self, rows: Sequence[TokenRow]) -> list[dict[str, Any]]:
        return [] if self._tokens is None else [self._tokens.chat_logprob(row) for row in rows]


def crc_of(text: str, before: int = 0) -> int:
    """Return the CRC-32 of a text in UTF-8, continued from that of the text before."""
    return crc32(text.encode(), before)
