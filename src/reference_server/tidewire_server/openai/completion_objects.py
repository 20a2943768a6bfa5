"""Build completions and chat completions from the texts of a job, as whole objects or as chunks of a stream."""

from collections.abc import Sequence
from typing import Any

import orjson

from tidewire_server.openai.job_inputs import JobRequest
from tidewire_server.openai.text_progress import TextChange
from tidewire_server.openai.token_logprobs import TokenBytes, TokenRow
from tidewire_server.store.records import JobRecord


def sse_frame(data: object, event: str | None = None) -> bytes:
    """Encode one server-sent event."""
    head = b"" if event is None else b"event: %b\n" % event.encode()
    return b"%bdata: %b\n\n" % (head, orjson.dumps(data))


def usage_of(record: JobRecord, samples: int) -> dict[str, Any] | None:
    """Return the token usage of an ended job, or None if it is unknown. A prompt with several samples counts once."""
    usage = record.done.usage if record.done is not None else {}
    if "prompt_tokens" not in usage or "completion_tokens" not in usage:
        return None
    prompt, generated = usage["prompt_tokens"] // samples, usage["completion_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


class CompletionWriter:
    """Writes completions: one object, or the chunks of a stream. A subclass writes chat completions."""

    after = -1
    id_prefix = "cmpl"
    object = chunk_object = "text_completion"

    def __init__(self, request: JobRequest, record: JobRecord, model: str, tokens: TokenBytes | None) -> None:
        """Create a writer. `tokens` is needed only if log-probabilities were requested."""
        self._request = request
        self._tokens = tokens
        self._common = {
            "id": f"{self.id_prefix}-{record.id}",
            "created": int(record.created_at),
            "model": model,
            "system_fingerprint": None,
        }

    def completion(self, changes: Sequence[TextChange], record: JobRecord) -> dict[str, Any]:
        """Build the completion object of an ended job from the complete text of each item."""
        choices = [
            {"index": one.index, **self._choice(one), "finish_reason": one.finish_reason} for one in changes
        ]
        usage = usage_of(record, self._request.samples)
        return {**self._common, "object": self.object, "choices": choices, "usage": usage}

    def begin(self) -> bytes:
        """Return the chunks with which a stream begins, before any generated text."""
        return b""

    def change(self, change: TextChange) -> bytes:
        """Return the chunks for text that was added to an item, or for the end of its text."""
        index, frames = change.index, b""
        if change.text or change.rows or change.reasoning:
            frames = self._chunk(index, self._delta(change), None)
        if change.item is not None and change.item["status"] == "succeeded":
            frames += self._chunk(index, self._delta(TextChange(index, "", [], None)), change.finish_reason)
        return frames

    def end(self, record: JobRecord) -> bytes:
        """Return the last chunks of a job whose texts are all complete."""
        frames = b""
        if self._request.include_usage:
            usage = usage_of(record, self._request.samples)
            frames = sse_frame({**self._common, "object": self.chunk_object, "choices": [], "usage": usage})
        return frames + b"data: [DONE]\n\n"

    def fail(self, error: dict[str, Any]) -> bytes:
        """Return the end of a stream that ends with an error."""
        return sse_frame(error)

    def _chunk(self, index: int, members: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": index, **members, "finish_reason": finish_reason}
        usage = {"usage": None} if self._request.include_usage else {}
        return sse_frame({**self._common, "object": self.chunk_object, "choices": [choice], **usage})

    def _choice(self, change: TextChange) -> dict[str, Any]:
        return self._delta(change)

    def _delta(self, change: TextChange) -> dict[str, Any]:
        logprobs = None
        if self._tokens is not None and change.rows:
            logprobs = self._tokens.completion_logprobs(change.rows)
        return {"text": change.text, "logprobs": logprobs}


class ChatWriter(CompletionWriter):
    """Writes chat completions: one object, or the chunks of a stream."""

    id_prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def begin(self) -> bytes:
        first = {"delta": {"role": "assistant", "content": "", "refusal": None}, "logprobs": None}
        return b"".join(self._chunk(index, first, None) for index in range(self._request.items))

    def _choice(self, change: TextChange) -> dict[str, Any]:
        message = {"role": "assistant", "content": change.text, "refusal": None, **_reasoning(change)}
        return {"message": message, "logprobs": self._logprobs(change.rows)}

    def _delta(self, change: TextChange) -> dict[str, Any]:
        delta = {"content": change.text} if change.text or change.rows else {}
        return {"delta": delta | _reasoning(change), "logprobs": self._logprobs(change.rows)}

    def _logprobs(self, rows: Sequence[TokenRow]) -> dict[str, Any] | None:
        if self._tokens is None or not rows:
            return None
        return {"content": [self._tokens.chat_logprob(row) for row in rows], "refusal": None}


def _reasoning(change: TextChange) -> dict[str, str]:
    """Return the model's reasoning as a member with the name that vLLM, SGLang and DeepSeek use."""
    return {"reasoning_content": change.reasoning} if change.reasoning else {}
