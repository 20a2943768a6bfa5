"""Log-probabilities of a whole generation as numpy arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidewire.errors import TidewireError, Where
from tidewire.jobs.tokens import ASK, invalid_columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_TOKEN: Final = -1
"""The id where a place has fewer candidates than another."""


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """The columns of one generation. n generated tokens, m tokens of the prompt, k candidates at most, s scored ids.

    Log-probabilities are natural logarithms (nats), float64. What JSON writes as null is a probability of 0, and is
    minus infinity here: its exponential is 0, and it sorts last, where NaN would spoil every sum. NaN stands only for
    what is not defined: the log-probability of the prompt's first token, which nothing precedes. A place with fewer
    than k candidates is filled with the id -1 and minus infinity. A column that was not asked for is None.

    Attributes:
        token_ids: int64, shape (n,); empty where only the prompt was asked about.
        logprobs: float64, (n,).
        ranks: int64, (n,): 1 is the most probable token.
        top_ids: int64, (n, k), most probable first.
        top_logprobs: float64, (n, k).
        tie_counts: int64, (n,).
        scored_logprobs: float64, (n, s), in the order of `logprob_token_ids`.
        prompt_token_ids: int64, (m,).
        prompt_logprobs: float64, (m,); the first is NaN.
        prompt_top_ids: int64, (m, k); the first row has no candidates.
        prompt_top_logprobs: float64, (m, k).
        mode: `raw` or `processed`: of which distribution they are; None where there are none.
    """

    token_ids: "NDArray[np.int64]"
    logprobs: "NDArray[np.float64] | None"
    ranks: "NDArray[np.int64] | None"
    top_ids: "NDArray[np.int64] | None"
    top_logprobs: "NDArray[np.float64] | None"
    tie_counts: "NDArray[np.int64] | None"
    scored_logprobs: "NDArray[np.float64] | None"
    prompt_token_ids: "NDArray[np.int64] | None"
    prompt_logprobs: "NDArray[np.float64] | None"
    prompt_top_ids: "NDArray[np.int64] | None"
    prompt_top_logprobs: "NDArray[np.float64] | None"
    mode: str | None


def logprobs_of(value: Any, where: Where) -> Logprobs:
    """The arrays of a generation's value.

    Raises:
        TidewireError: The value has no columns of tokens.
        ProtocolError: They are not those of a generation.
        ImportError: numpy is not installed.
    """
    if not isinstance(value, dict) or not ({"token_ids", "prompt_token_ids"} & value.keys()):
        raise TidewireError("this job's value has no columns of tokens", where=where, advice=ASK)
    numpy = _numpy()
    try:
        return _arrays(value, numpy)
    except (TypeError, ValueError) as error:
        raise invalid_columns(error, where) from error


def _arrays(value: dict[str, Any], numpy: Any) -> Logprobs:
    def column(name: str) -> Any:
        found = value.get(name)
        of = "prompt_token_ids" if name.startswith("prompt_") else "token_ids"
        if found is not None and len(found) != len(value.get(of) or ()):
            raise ValueError(f"{name} and {of} have not as many elements")
        return found

    def whole(name: str) -> Any:
        found = column(name)
        return None if found is None else numpy.array([*map(_whole, found)], dtype=numpy.int64)

    def nats(name: str) -> Any:
        found = column(name)
        return None if found is None else numpy.array([_nats(one) for one in found], dtype=numpy.float64)

    def table(name: str, fill: float, kind: Any) -> Any:
        found: Sequence[Sequence[Any] | None] | None = column(name)
        if found is None:
            return None
        rows = [row or () for row in found]
        filled = numpy.full((len(rows), max(map(len, rows), default=0)), fill, dtype=kind)
        for at, row in enumerate(rows):
            filled[at, : len(row)] = [fill if one is None else one for one in row]
        return filled

    def ids(name: str) -> Any:
        return table(name, NO_TOKEN, numpy.int64)

    def candidates(name: str) -> Any:
        return table(name, -math.inf, numpy.float64)

    token_ids, of_prompt = whole("token_ids"), nats("prompt_logprobs")
    if of_prompt is not None and len(of_prompt):
        of_prompt[0] = math.nan
    return Logprobs(
        token_ids=numpy.array([], dtype=numpy.int64) if token_ids is None else token_ids,
        logprobs=nats("logprobs"),
        ranks=whole("ranks"),
        top_ids=ids("top_ids"),
        top_logprobs=candidates("top_logprobs"),
        tie_counts=whole("tie_counts"),
        scored_logprobs=candidates("scored_logprobs"),
        prompt_token_ids=whole("prompt_token_ids"),
        prompt_logprobs=of_prompt,
        prompt_top_ids=ids("prompt_top_ids"),
        prompt_top_logprobs=candidates("prompt_top_logprobs"),
        mode=value.get("logprobs_mode"),
    )


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError(f"{number!r} is no whole number")
    return number


def _nats(logprob: float | None) -> float:
    return -math.inf if logprob is None else logprob


def _numpy() -> Any:
    try:
        import numpy  # noqa: PLC0415, ICN001 - optional: only who asks for arrays needs it
    except ImportError as error:
        raise ImportError(
            "job.logprobs() gives numpy arrays and numpy is not installed: pip install numpy, or take job.tokens()"
        ) from error
    return numpy
