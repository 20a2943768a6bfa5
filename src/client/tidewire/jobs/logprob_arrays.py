"""Log-probabilities of a complete generation as numpy arrays."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidewire.errors import TidewireError, Where
from tidewire.jobs.generated_tokens import ASK, invalid_columns, nats
from tidewire.protocol.document.logprob_columns import COLUMNS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_TOKEN: Final = -1
"""Fill value of `top_ids`, for rows that have fewer candidates than the longest row."""


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """Tokens and log-probabilities of one generation, as numpy arrays.

    In the shapes below, n is the number of generated tokens, m is the number of prompt tokens, k is the largest number
    of candidates for a token, and s is the number of token ids in the request's `logprob_token_ids`. Arrays that were
    not requested when the job was submitted are None.

    Log-probabilities are natural logarithms as float64. For probability 0, the server sends null, and the array
    contains minus infinity: its `exp` is 0, and it is less than all other elements. NaN occurs only for the first token
    of the prompt, whose log-probability is undefined. A row with fewer than k candidates is filled up with the id -1
    and the log-probability minus infinity.

    Attributes:
        token_ids: int64 (n,). Empty if only log-probabilities of the prompt were requested.
        logprobs: float64 (n,).
        ranks: int64 (n,). The most probable token has rank 1.
        top_ids: int64 (n, k), most probable candidate first.
        top_logprobs: float64 (n, k).
        tie_counts: int64 (n,). Number of tokens that are as probable as the last candidate, but are not in `top_ids`.
        scored_logprobs: float64 (n, s), in the order of the request's `logprob_token_ids`.
        prompt_token_ids: int64 (m,).
        prompt_logprobs: float64 (m,). The first element is NaN.
        prompt_top_ids: int64 (m, k). The first row has no candidates.
        prompt_top_logprobs: float64 (m, k).
        mode: Distribution that the log-probabilities describe: `raw` or `processed`. None if there are no
            log-probabilities.

    Example:
        job = await client.submit("generate", prompt="def fib(", max_tokens=64, logprobs=True)
        arrays = await job.logprobs()
        print(arrays.logprobs.mean())
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
    """Convert the tokens and log-probabilities in a generation's value to arrays.

    Raises:
        TidewireError: The value has no tokens.
        ProtocolError: The lists of tokens and log-probabilities are inconsistent or have elements of the wrong type.
        ImportError: numpy is not installed.
    """
    if not isinstance(value, dict) or not ({"token_ids", "prompt_token_ids"} & value.keys()):
        raise TidewireError("this job's value has no token columns", where=where, advice=ASK)
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
            raise ValueError(f"{name} and {of} differ in length")
        return found

    def whole(name: str) -> Any:
        found = column(name)
        return None if found is None else numpy.array([*map(_whole, found)], dtype=numpy.int64)

    def floats(name: str) -> Any:
        found = column(name)
        return None if found is None else numpy.array([*map(nats, found)], dtype=numpy.float64)

    def table(fill: float, kind: Any, name: str) -> Any:
        found: Sequence[Sequence[Any] | None] | None = column(name)
        if found is None:
            return None
        rows = [row or () for row in found]
        filled = numpy.full((len(rows), max(map(len, rows), default=0)), fill, dtype=kind)
        for at, row in enumerate(rows):
            filled[at, : len(row)] = [fill if one is None else one for one in row]
        return filled

    arrays: dict[Any, Callable[[str], Any]] = {
        int: whole,
        float | None: floats,
        list[int]: partial(table, NO_TOKEN, numpy.int64),
        list[float | None]: partial(table, -math.inf, numpy.float64),
    }
    found = {one.name: arrays[one.element](one.name) for one in COLUMNS if one.element in arrays}
    if found["token_ids"] is None:
        found["token_ids"] = numpy.array([], dtype=numpy.int64)
    of_prompt = found["prompt_logprobs"]
    if of_prompt is not None and len(of_prompt):
        of_prompt[0] = math.nan
    return Logprobs(**found, mode=value.get("logprobs_mode"))


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError(f"{number!r} is not an integer")
    return number


def _numpy() -> Any:
    try:
        import numpy  # noqa: PLC0415, ICN001 - optional dependency, needed only for arrays
    except ImportError as error:
        raise ImportError(
            "job.logprobs() needs numpy, which is not installed: run `pip install numpy`, or use job.tokens()"
        ) from error
    return numpy
