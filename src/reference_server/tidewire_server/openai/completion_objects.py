"""Objects and chunks of completions and chat completions, from the texts of a job."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import orjson

from tidewire_server.openai.job_inputs import JobRequest
from tidewire_server.openai.text_progress import TextChange
from tidewire_server.openai.token_logprobs import TokenBytes, TokenRow
from tidewire_server.store.records import JobRecord

DONE = b"data: [DONE]\n\n"


def sse_frame(data: object, event: str | None = None) -> bytes:
    """Encode one event of a stream."""
    head = b"" if event is None else b"event: %b\n" % event.encode()
    return b"%bdata: %b\n\n" % (head, orjson.dumps(data))


class EventWriter(Protocol):
    """Encoder of the events of one stream."""

    def begin(self) -> Iterator[bytes]:
        """Yield the events before the first text."""
        ...

    def change(self, change: TextChange) -> Iterator[bytes]:
        """Yield the events for a new part of a text, or for the end of a text. An item that has failed has no end."""
        ...

    def end(self, record: JobRecord) -> Iterator[bytes]:
        """Yield the last events of a job whose texts are all complete."""
        ...

    def fail(self, error: dict[str, Any], failed: TextChange | None) -> Iterator[bytes]:
        """Yield the last events of a stream that ends with an error.

        Args:
            error: Body of the error.
            failed: Last change of the item that has failed, or None if the error concerns only the stream.
        """
        ...


def usage_of(record: JobRecord, samples: int) -> dict[str, Any] | None:
    """Return the usage of an ended job, or None if it is unknown. A prompt with several samples counts once."""
    usage = record.done.usage if record.done is not None else {}
    if "prompt_tokens" not in usage or "completion_tokens" not in usage:
        return None
    prompt, generated = usage["prompt_tokens"] // max(1, samples), usage["completion_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


class CompletionWriter:
    """Writes completions: one object, or the chunks of a stream. A subclass writes chat completions."""

    id_prefix = "cmpl"
    object = chunk_object = "text_completion"

    def __init__(self, request: JobRequest, record: JobRecord, model: str, tokens: TokenBytes | None) -> None:
        """Create a writer.

        Args:
            request: The request.
            record: Record of the job.
            model: Name of the model in the result.
            tokens: Bytes of the tokens, if log-probabilities were requested.
        """
        self._request = request
        self._tokens = tokens
        self._sent: dict[int, int] = {}
        self._common = {
            "id": f"{self.id_prefix}-{record.id}",
            "created": int(record.created_at),
            "model": model,
            "system_fingerprint": None,
        }

    def completion(self, changes: Sequence[TextChange], record: JobRecord) -> dict[str, Any]:
        """Return the whole completion.

        Args:
            changes: The whole text of each item.
            record: Record of the ended job.
        """
        choices = [
            {"index": change.index, **self._choice(change), "finish_reason": _finish_reason(change)}
            for change in changes
        ]
        usage = usage_of(record, self._request.samples)
        return {**self._common, "object": self.object, "choices": choices, "usage": usage}

    def begin(self) -> Iterator[bytes]:
        """See `EventWriter`."""
        return iter(())

    def change(self, change: TextChange) -> Iterator[bytes]:
        """See `EventWriter`."""
        if change.text or change.rows:
            yield self._chunk(change.index, self._delta(change), None)
        if change.item is not None:
            yield self._chunk(change.index, self._delta(TextChange(change.index, "", [], None)), _finish_reason(change))
        self._sent[change.index] = self._sent.get(change.index, 0) + len(change.text)

    def end(self, record: JobRecord) -> Iterator[bytes]:
        """See `EventWriter`."""
        if self._request.include_usage:
            usage = usage_of(record, self._request.samples)
            yield sse_frame({**self._common, "object": self.chunk_object, "choices": [], "usage": usage})
        yield DONE

    def fail(self, error: dict[str, Any], _failed: TextChange | None) -> Iterator[bytes]:
        """See `EventWriter`."""
        yield sse_frame(error)

    def _chunk(self, index: int, members: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": index, **members, "finish_reason": finish_reason}
        usage = {"usage": None} if self._request.include_usage else {}
        return sse_frame({**self._common, "object": self.chunk_object, "choices": [choice], **usage})

    def _choice(self, change: TextChange) -> dict[str, Any]:
        return self._delta(change)

    def _delta(self, change: TextChange) -> dict[str, Any]:
        return {"text": change.text, "logprobs": self._logprobs(change.rows, self._sent.get(change.index, 0))}

    def _logprobs(self, rows: Sequence[TokenRow], offset: int) -> dict[str, Any] | None:
        if self._tokens is None or not rows:
            return None
        has_top = bool(self._request.inputs[0].get("top_logprobs"))
        return self._tokens.completion_logprobs(rows, offset, has_top=has_top)


class ChatWriter(CompletionWriter):
    """Writes chat completions: one object, or the chunks of a stream."""

    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def begin(self) -> Iterator[bytes]:
        """See `EventWriter`."""
        for index in range(self._request.samples):
            delta = {"role": "assistant", "content": "", "refusal": None}
            yield self._chunk(index, {"delta": delta, "logprobs": None}, None)

    def _choice(self, change: TextChange) -> dict[str, Any]:
        message = {"role": "assistant", "content": change.text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(change.rows, 0)}

    def _delta(self, change: TextChange) -> dict[str, Any]:
        delta = {"content": change.text} if change.text or change.rows else {}
        return {"delta": delta, "logprobs": self._logprobs(change.rows, 0)}

    def _logprobs(self, rows: Sequence[TokenRow], _offset: int) -> dict[str, Any] | None:
        if self._tokens is None or not rows:
            return None
        return {"content": [self._tokens.chat_logprob(row) for row in rows], "refusal": None}


def _finish_reason(change: TextChange) -> str | None:
    found: str | None = None if change.item is None else change.item["value"]["finish_reason"]
    return found
