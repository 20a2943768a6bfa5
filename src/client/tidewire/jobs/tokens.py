"""The tokens of a generation, and their log-probabilities: rows of the columns of a job's value.

A token is handed over once, when it can no longer become void: at once where the endpoint has no rollback; elsewhere
when text that follows it has become stable, and the rest at the end.

A token's text is that of its bytes alone, with U+FFFD where these are no whole character. It is for showing: the text
of a job is what `iter_text` gives, not what the texts of its tokens make when they are joined.
"""

import base64
import binascii
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tidewire.errors import ProtocolError, TidewireError, Where
from tidewire.http.api_session import ApiSession
from tidewire.jobs.final_text import FinalTextReader
from tidewire.options import Options
from tidewire.protocol.document.view import View
from tidewire.protocol.resources import EndpointDescription
from tidewire.types import ItemChange

_VALUE = "/items/0/value"
ASK = "Ask for them in the submit: logprobs=True, or top_logprobs=n for the n most probable tokens at each place."


class Alternative(NamedTuple):
    """A candidate at one place of a text.

    Attributes:
        text: The text of its bytes alone.
        id: Its id in the vocabulary.
        logprob: Natural logarithm of its probability; minus infinity where that is 0.
    """

    text: str
    id: int
    logprob: float


class Token(NamedTuple):
    """A generated token.

    Attributes:
        text: The text of its bytes alone, for showing.
        id: Its id in the vocabulary.
        logprob: Natural logarithm of its probability, in nats; minus infinity where that is 0, None where
            log-probabilities were not asked for.
        rank: 1 plus the number of tokens that were more probable; None where `ranks` was not asked for.
        alternatives: The most probable tokens at its place, most probable first; it need not be among them. Empty
            where `top_logprobs` was not asked for.
    """

    text: str
    id: int
    logprob: float | None = None
    rank: int | None = None
    alternatives: tuple[Alternative, ...] = ()


class Vocabulary(BaseModel):
    """What `GET …/vocabulary` answers: id → bytes."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    hash: str
    tokens: tuple[bytes, ...]
    special: frozenset[int] = Field(default_factory=frozenset)
    """Ids that add nothing to a text; their bytes are names for showing."""

    @field_validator("tokens", mode="before")
    @classmethod
    def _decode(cls, tokens: Any) -> Any:
        try:
            return tuple(base64.b64decode(one, validate=True) for one in tokens)
        except (TypeError, binascii.Error) as error:
            raise ValueError(f"tokens are base64: {error}") from None

    def text(self, token_id: int) -> str:
        """The text of one token's bytes alone."""
        if not 0 <= token_id < len(self.tokens):
            raise ProtocolError(f"token {token_id} is not in a vocabulary of {len(self.tokens)}")
        return self.tokens[token_id].decode("utf-8", "replace")


class TokenRows:
    """Hands over the tokens of a job's value; see the top of this file.

    Args:
        text: Knows what can no longer become void.
        handed: Tokens that were handed over before.
        vocabulary: Asks for the endpoint's vocabulary; None where it has none.
        where: For errors.
    """

    silent = True

    def __init__(
        self,
        text: FinalTextReader,
        *,
        delivered: int,
        vocabulary: Callable[[], Awaitable[Vocabulary | None]],
        where: Where,
    ) -> None:
        self._text = text
        self._delivered = delivered
        self._fetch_vocabulary = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._where = where

    def settled(self, update: ItemChange[Any] | None) -> Sequence[ItemChange[Any]]:
        return self._text.settled(update)

    async def prepare(self) -> None:
        await self._text.prepare()
        self._vocabulary = await self._fetch_vocabulary()

    def project(self, update: ItemChange[Any]) -> Iterable[Token]:
        self._text.project(update)
        view = update.place.view
        if view.length(f"{_VALUE}/token_ids") < self._delivered:
            raise self._text.retraction_error("tokens", update)
        if update.text and not _has_tokens(view):
            raise self._no_tokens()
        return self._new_tokens()

    def finish(self) -> Iterable[Token]:
        self._text.finish()
        last = self._text.final
        # A job that failed has its own error, which comes next.
        if last is not None and last.member("status") == "succeeded" and not _has_tokens(last.place.view):
            raise self._no_tokens()
        return self._new_tokens()

    def _no_tokens(self) -> TidewireError:
        return TidewireError("this job's value has no columns of tokens", where=self._where, advice=ASK)

    def undelivered(self) -> Iterable[ItemChange[Any]]:
        return self._text.undelivered()

    def _new_tokens(self) -> Iterable[Token]:
        final = self._text.final
        if final is None:
            return ()
        start, view = self._delivered, final.place.view
        self._delivered = max(start, view.length(f"{_VALUE}/token_ids"))
        try:
            return tuple(self._tokens(view, start)) if self._delivered > start else ()
        except (TypeError, ValueError) as error:
            raise invalid_columns(error, self._where) from error

    def _tokens(self, view: View, start: int) -> Iterator[Token]:
        columns = {name: _column(view, name, start) for name in _COLUMNS}
        for at, token_id in enumerate(columns["token_ids"]):
            if type(token_id) is not int:
                raise TypeError(f"{token_id!r} is no id of a token")
            row = {name: column[at] if at < len(column) else None for name, column in columns.items()}
            ids, logprobs = row["top_ids"] or (), row["top_logprobs"] or ()
            texts = row["top_text"] or (None,) * len(ids)
            yield Token(
                self._token_text(token_id, row["token_text"]),
                token_id,
                # A null in the column is a probability of 0; a column that is not there was not asked for.
                _nats(row["logprobs"]) if columns["logprobs"] else None,
                row["ranks"],
                tuple(
                    Alternative(self._token_text(one, text), one, _nats(logprob))
                    for one, text, logprob in zip(ids, texts, logprobs, strict=True)
                ),
            )

    def _token_text(self, token_id: int, text: str | None) -> str:
        if text is not None:
            if not isinstance(text, str):
                raise TypeError(f"{text!r} is no text of a token")
            return text
        if self._vocabulary is None:
            advice = "Ask for token_text=True in the submit."
            what = "this endpoint has no vocabulary, and the job no texts of its tokens"
            raise TidewireError(what, where=self._where, advice=advice)
        return self._vocabulary.text(token_id)


def invalid_columns(error: Exception, where: Where) -> ProtocolError:
    """The error for columns whose elements are not what they are said to be, or do not belong together."""
    return ProtocolError(
        f"the columns of this job's tokens are not those of a generation: {error}", where=where
    )


_COLUMNS = ("token_ids", "logprobs", "ranks", "top_ids", "top_logprobs", "token_text", "top_text")


def _column(view: View, name: str, start: int) -> list[Any]:
    return view.elements(f"{_VALUE}/{name}", start)


def _has_tokens(view: View) -> bool:
    try:
        view.value(f"{_VALUE}/token_ids")
    except LookupError:
        return False
    return True


def _nats(logprob: float | None) -> float:
    return -math.inf if logprob is None else float(logprob)


def has_token_texts(view: View) -> bool:
    """Whether a job's value carries the texts of its tokens itself, so that no vocabulary is needed."""
    value: Any = view.value(_VALUE) if _has_tokens(view) else {}
    return "token_text" in value and ("top_ids" not in value or "top_text" in value)


def read_vocabulary(body: bytes, where: Where) -> Vocabulary:
    """Read a vocabulary as a server answers it.

    Raises:
        ProtocolError: It is none.
    """
    try:
        return Vocabulary.model_validate_json(body)
    except ValidationError as error:
        raise ProtocolError(f"not a vocabulary: {error}", where=where) from None


class Vocabularies:
    """The vocabularies of one server's endpoints, each read once; shared by all views of a client."""

    def __init__(self, session: ApiSession) -> None:
        self._session = session
        self._read: dict[str, Vocabulary] = {}

    async def get(self, endpoint: EndpointDescription, options: Options) -> Vocabulary | None:
        """An endpoint's vocabulary, None where it has none. A known one is revalidated by its hash, not sent again.

        Raises:
            TidewireError: The server refused it, or cannot be reached.
        """
        session = self._session
        link = endpoint.links.get("vocabulary")
        if link is None:
            return None
        at = session.endpoint_url(endpoint.name)
        url = session.here(at, link, f"{at}/vocabulary")
        known = self._read.get(endpoint.name)
        headers = {} if known is None else {"If-None-Match": f'"{known.hash}"'}
        answer = await session.ask("GET", url, options, headers=headers)
        if known is None or answer.status != HTTPStatus.NOT_MODIFIED:
            known = self._read[endpoint.name] = read_vocabulary(answer.body, answer.where())
        return known
