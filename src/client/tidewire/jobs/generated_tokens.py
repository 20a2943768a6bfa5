"""Tokens of a generation with their log-probabilities, which are read from the lists of tokens in a job's value.

Each iterator yields all tokens of the job, from the first one, whatever other loops have read. A token is yielded once,
as it arrives. But if the item has the member `stable`, a token is held back until text after the token is stable or the
job has ended.

The text of a token is decoded from the bytes of this token alone, with U+FFFD for incomplete characters. This text is
meant for display. The joined texts of all tokens can differ from the job's text, which `iter_text` yields.
"""

import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from tidewire.errors import ProtocolError, TidewireError, VoidTextError, Where
from tidewire.http.api_session import ApiSession
from tidewire.jobs.streamed_text import MAX_HELD, stable_length
from tidewire.jobs.update_iterator import Projection
from tidewire.options import Options
from tidewire.protocol.document.json_pointer import parse
from tidewire.protocol.document.view import View
from tidewire.protocol.resources import EndpointDescription
from tidewire.updates import ItemChange, Position

_VALUE = "/items/0/value"
_IDS = f"{_VALUE}/token_ids"
_IDS_NODE: Final = parse(_IDS)
_COLUMNS = ("token_ids", "logprobs", "ranks", "top_ids", "top_logprobs", "token_text", "top_text")
"""Names of the lists in an item's value from which `Token` objects are created."""
ASK = "Request them when you submit the job: logprobs=True, or top_logprobs=n for the n most probable tokens."


class Alternative(NamedTuple):
    """One of the most probable candidates for a generated token.

    Attributes:
        text: Text for display, decoded from the bytes of this candidate alone.
        id: Id of the candidate in the vocabulary.
        logprob: Natural logarithm of the candidate's probability; minus infinity for probability 0.
    """

    text: str
    id: int
    logprob: float


class Token(NamedTuple):
    """A generated token.

    Attributes:
        text: Text for display, decoded from the bytes of this token alone.
        id: Id of the token in the vocabulary.
        logprob: Natural logarithm of the token's probability; minus infinity for probability 0, and None if
            log-probabilities were not requested.
        rank: 1 plus the number of more probable tokens; None if `ranks` were not requested.
        alternatives: The most probable candidates, most probable first. The generated token may be missing from this
            list. Empty if `top_logprobs` was not requested.
    """

    text: str
    id: int
    logprob: float | None = None
    rank: int | None = None
    alternatives: tuple[Alternative, ...] = ()


class Vocabulary(msgspec.Struct, frozen=True):
    """Vocabulary of an endpoint, which contains the bytes of every token id. The server sends it in response to `GET
    /v1/endpoints/{name}/vocabulary`. In JSON, bytes are base64.
    """

    hash: str
    tokens: tuple[bytes, ...]
    special: frozenset[int] = frozenset()
    """Ids of special tokens, which do not contribute to the text. Their bytes are names for display."""

    def text(self, token_id: int) -> str:
        """Decode the text of one token, with U+FFFD for incomplete characters.

        Raises:
            ProtocolError: The vocabulary has no token with this id.
        """
        if not 0 <= token_id < len(self.tokens):
            raise ProtocolError(f"token id {token_id} is not in the vocabulary of {len(self.tokens)} tokens")
        return self.tokens[token_id].decode("utf-8", "replace")


# Created here and not on first use, because two threads that use a struct first at the same time would crash the
# interpreter.
_VOCABULARY: Final = msgspec.json.Decoder(Vocabulary)


class TokenRows(Projection[Token]):
    """Projection for `tokens`. Converts the states of a job to tokens.

    Args:
        text: Function that returns the JSON Pointer of the job's text in a state, or None if there is no text yet.
        vocabulary: Coroutine function that returns the endpoint's vocabulary. It returns None if the endpoint has no
            vocabulary, or if the job does not need one.
        where: Context for error messages.
    """

    def __init__(
        self,
        *,
        text: Callable[[Position], str | None],
        vocabulary: Callable[[], Awaitable[Vocabulary | None]],
        where: Where,
    ) -> None:
        self._text = text
        self._fetch_vocabulary = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._where = where
        self._yielded = 0
        """Number of yielded tokens."""
        self._source: View | None = None
        """The state from which the last token was yielded."""
        self._held: deque[tuple[int, View]] = deque()
        """States whose tokens may still be retracted, each with the length of its text. The tokens of each state begin
        with the tokens of the previous state."""
        self._last: ItemChange[Any] | None = None

    def settled(self, _update: ItemChange[Any] | None) -> Sequence[ItemChange[Any]]:
        return ()

    async def prepare(self) -> None:
        self._vocabulary = await self._fetch_vocabulary()

    def project(self, update: ItemChange[Any]) -> Iterable[Token]:
        self._last, view = update, update.position.view
        if self._source is not None and not _begins_with(view, self._source, self._yielded):
            raise VoidTextError(
                f"the server retracted tokens that this iterator had already yielded, {update.cause}",
                where=self._where._replace(last_event_id=str(update.cursor)),
                advice="Call job.tokens() again, which starts with the first token.",
            )
        column = self._text(update.position)
        length = 0 if column is None else view.text_length(parse(column))
        if length and not _has_tokens(view):
            raise self._no_tokens()
        stable = stable_length(update, column)
        if stable is None:
            self._held.clear()
            return self._new_tokens(view)
        while self._held and not _begins_with(view, self._held[-1][1]):
            self._held.pop()
        self._held.append((length, view))
        if len(self._held) > MAX_HELD:
            self._held = deque([*self._held][1::2])
        final: View | None = None
        # A rollback may still retract tokens that arrived together with the last stable code point, or without text
        # after it.
        while self._held and self._held[0][0] < stable:
            final = self._held.popleft()[1]
        # Use the newest state, because a retracted token may have arrived again with another log-probability.
        return () if final is None else self._new_tokens(view, final.length(_IDS))

    def finish(self) -> Iterable[Token]:
        if self._last is None:
            return ()
        view = self._last.position.view
        # Do not raise an error for a job that failed, because the iterator raises the job's own error next.
        if self._last.member("status") == "succeeded" and not _has_tokens(view):
            raise self._no_tokens()
        return self._new_tokens(view)

    def newest(self, view: View, limit: int) -> Sequence[Token]:
        """Return the last `limit` tokens of a state. Returns no tokens if the state's lists of tokens are not valid."""
        try:
            return [*self._tokens(view, max(0, view.length(_IDS) - limit))]
        except (TypeError, ValueError, TidewireError):
            return ()

    def _no_tokens(self) -> TidewireError:
        return TidewireError("this job's value has no token columns", where=self._where, advice=ASK)

    def _new_tokens(self, view: View, count: int | None = None) -> Iterable[Token]:
        """Return the tokens of a state that were not yielded yet. `count` limits them to the first tokens."""
        start, count = self._yielded, view.length(_IDS) if count is None else count
        if count <= start:
            return ()
        self._yielded, self._source = count, view
        try:
            return tuple(itertools.islice(self._tokens(view, start), count - start))
        except (TypeError, ValueError) as error:
            raise invalid_columns(error, self._where) from error

    def _tokens(self, view: View, start: int) -> Iterator[Token]:
        columns: dict[str, list[Any]] = {name: view.elements(f"{_VALUE}/{name}", start) for name in _COLUMNS}
        for at, token_id in enumerate(columns["token_ids"]):
            if type(token_id) is not int:
                raise TypeError(f"{token_id!r} is not a token id")
            row = {name: column[at] if at < len(column) else None for name, column in columns.items()}
            ids, logprobs = row["top_ids"] or (), row["top_logprobs"] or ()
            texts = row["top_text"] or (None,) * len(ids)
            yield Token(
                self._token_text(token_id, row["token_text"]),
                token_id,
                # A null in the list of log-probabilities means probability 0. If the whole list is missing, it was not
                # requested.
                nats(row["logprobs"]) if columns["logprobs"] else None,
                row["ranks"],
                tuple(
                    Alternative(self._token_text(one, text), one, nats(logprob))
                    for one, text, logprob in zip(ids, texts, logprobs, strict=True)
                ),
            )

    def _token_text(self, token_id: int, text: str | None) -> str:
        if text is not None:
            if not isinstance(text, str):
                raise TypeError(f"{text!r} is not a token text")
            return text
        if self._vocabulary is None:
            advice = "Pass token_text=True when you submit the job."
            what = "the texts of this job's tokens are unknown: the endpoint has no vocabulary"
            raise TidewireError(what, where=self._where, advice=advice)
        return self._vocabulary.text(token_id)


def invalid_columns(error: Exception, where: Where) -> ProtocolError:
    """Create the error for a value whose lists of tokens are inconsistent or have elements of the wrong type."""
    return ProtocolError(f"the token columns of this job are not valid: {error}", where=where)


def _has_tokens(view: View) -> bool:
    return view.node(_IDS_NODE) is not None


def _begins_with(view: View, earlier: View, count: int | None = None) -> bool:
    """Return whether the token ids in a state begin with the first `count` token ids of an earlier state, or with all of
    them.
    """
    # An array that only grew is the same node in both states.
    if view.node(_IDS_NODE) is earlier.node(_IDS_NODE):
        return True
    ids = earlier.elements(_IDS, 0)[:count]
    return view.elements(_IDS, 0)[: len(ids)] == ids


def nats(logprob: float | None) -> float:
    """Return a log-probability as a number. The server sends null for probability 0."""
    return -math.inf if logprob is None else float(logprob)


def has_token_texts(view: View) -> bool:
    """Whether a job's value contains the texts of its tokens. If it does, the client does not need the vocabulary."""
    value: Any = view.value(_VALUE) if _has_tokens(view) else {}
    return "token_text" in value and ("top_ids" not in value or "top_text" in value)


class Vocabularies:
    """Cache of the vocabularies of a server's endpoints, shared by a client and its `with_options` copies."""

    def __init__(self, session: ApiSession) -> None:
        self._session = session
        self._read: dict[str, Vocabulary] = {}

    async def get(self, endpoint: EndpointDescription, options: Options) -> Vocabulary | None:
        """Return the vocabulary of an endpoint, or None if the endpoint has no vocabulary.

        A cached vocabulary is revalidated with `If-None-Match`, so the server does not send an unchanged vocabulary
        again.

        Raises:
            TidewireError: The server refused the request or could not be reached.
            ProtocolError: The body of the response is not a valid vocabulary.
        """
        session = self._session
        link = endpoint.links.get("vocabulary")
        if link is None:
            return None
        at = session.endpoint_url(endpoint.name)
        url = session.links.same_origin(at, link, f"{at}/vocabulary")
        known = self._read.get(endpoint.name)
        headers = {} if known is None else {"If-None-Match": f'"{known.hash}"'}
        response = await session.request("GET", url, options, headers=headers)
        if known is None or response.status != HTTPStatus.NOT_MODIFIED:
            try:
                known = self._read[endpoint.name] = _VOCABULARY.decode(response.body)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                what = f"the response is not a valid vocabulary: {error}"
                raise ProtocolError(what, where=response.where()) from None
        return known
