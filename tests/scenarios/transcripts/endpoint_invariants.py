"""Invariants for the values of endpoints, derived from the endpoint descriptions."""

import base64
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

from scenarios.transcripts.record import ENDS, Run, Step, checks, job_bodies, texts_of

# ---- endpoints -----------------------------------------------------------------------------------------------------


@checks("TW-DSC-020")
def values_match_value_schema(run):
    for exchange in run.exchanges:
        for body in job_bodies(exchange):
            endpoint = run.endpoints.get(body.get("endpoint", ""))
            for item in body.get("state", {"items": []})["items"]:
                if endpoint is not None and item["status"] == "succeeded":
                    for error in Draft202012Validator(endpoint["value_schema"]).iter_errors(item["value"]):
                        yield f"{exchange.where}: {error.message[:200]}"


def _steps_of_endpoints(run: Run) -> Iterator[tuple[Step, Any]]:
    for step in run.steps:
        endpoint = run.endpoints.get(run.jobs.get(step.job, ""))
        if endpoint is not None and step.event.type == "message" and step.before and step.after:
            yield step, endpoint["capabilities"]


@checks("TW-DSC-023")
def text_is_never_retracted_without_rollback(run):
    for step, capabilities in _steps_of_endpoints(run):
        pairs = zip(step.before["items"], step.after["items"], strict=True)
        for old, new in pairs if not capabilities.get("rollback") else ():
            now = dict(texts_of(new["value"]))
            for path, text in texts_of(old["value"]):
                if not now.get(path, "").startswith(text):
                    yield f"{step.event.id}: {path} was {text!r}, is {now.get(path)!r}"


@checks("TW-DSC-024", "TW-BAT-006", "TW-FRM-082")
def value_is_set_once_without_streaming(run):
    """One event sets value, status and error of an item."""
    for step, capabilities in _steps_of_endpoints(run):
        pairs = zip(step.before["items"], step.after["items"], strict=True)
        for old, new in pairs if not capabilities.get("streams") else ():
            if old["value"] != new["value"] and new["status"] not in ENDS:
                yield f"{step.event.id}: a new value, but the item has status {new['status']}"
            if new["status"] == "succeeded" != old["status"] and "value" not in step.event.fields["data"]:
                yield f"{step.event.id}: the item ended in an event without its value"


_PER_TOKEN = (
    "token_ids",
    "logprobs",
    "top_ids",
    "top_logprobs",
    "ranks",
    "tie_counts",
    "token_text",
    "top_text",
)


@checks("TW-GEN-011", "TW-GEN-029", "TW-GEN-030")
def token_columns_stay_aligned(run):
    """After each logged event, the columns have equal lengths.

    Candidates are ordered, and their probabilities add up to at most 1.
    """
    for step in run.steps:
        for item in (step.after or {"items": []})["items"]:
            value = item["value"]
            if not isinstance(value, dict) or "finish_reason" not in value:
                continue
            if len({len(value[name]) for name in _PER_TOKEN if name in value}) > 1:
                yield f"{step.event.id}: { ({n: len(value[n]) for n in _PER_TOKEN if n in value}) }"
            for ids, found in zip(value.get("top_ids", ()), value.get("top_logprobs", ()), strict=True):
                order = [(-(x if x is not None else -1e9), i) for i, x in zip(ids, found, strict=True)]
                whole = sum(2.718281828459045**x for x in found if x is not None)
                if [x for x, _ in order] != sorted(x for x, _ in order) or whole > 1.001 + len(found) * 1e-4:
                    yield f"{step.event.id}: candidates {ids} with log-probabilities {found}"


@checks("TW-GEN-014", "TW-GEN-015", "TW-GEN-038", "TW-GEN-039", "TW-GEN-042")
def text_matches_its_tokens(run):
    """The text consists of the tokens' bytes from the vocabulary without special tokens.

    `token_text` holds the text of each token.
    """
    known = run.endpoints.get("generate", {}).get("vocabulary", {"tokens": [], "special": []})
    tokens = [base64.b64decode(token, validate=True) for token in known["tokens"]]
    for step in run.steps if tokens else ():
        for value in (item["value"] for item in step.after["items"] if "token_ids" in item["value"]):
            token_bytes = [tokens[i] for i in value["token_ids"] if i not in known["special"]]
            whole = b"".join(token_bytes).decode("utf-8", "replace")
            # The server may hold back the end of the text: an incomplete character, or the possible start of
            # a stop string.
            if not whole.startswith(value["text"].rstrip("\ufffd")):
                yield f"{step.event.id}: the text is {value['text']!r}, the tokens are {whole!r}"
            shown = [*zip(value["token_ids"], value.get("token_text", ()), strict=False)]
            shown += [
                pair
                for ids, texts in zip(value.get("top_ids", ()), value.get("top_text", ()), strict=False)
                for pair in zip(ids, texts, strict=True)
            ]
            for token, text in shown:
                if tokens[token].decode("utf-8", "replace") != text:
                    yield f"{step.event.id}: token {token} is {tokens[token]!r}, not {text!r}"


@checks("TW-DIF-004")
def ephemeral_events_carry_no_results(run):
    """Ephemeral events have only the members of their tables.

    Everything that belongs to a result is in the state.
    """
    known = {
        "queue": {"position", "eta_ms"},
        "progress": {"current", "total", "unit", "phase", "item"},
        "ping": {"head"},
        "goaway": {"reason", "retry_ms"},
        "hello": {"protocol", "job", "events", "head", "heartbeat_ms"},
    }
    for exchange in run.exchanges:
        for event in exchange.events:
            if more := set(event.data if event.type in known else ()) - known.get(event.type, set()):
                yield f"{exchange.where}: {event.type} with {sorted(more)}"
