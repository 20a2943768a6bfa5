"""Sampling of tokens, independent of the other requests in the batch (`sample`).

Each token gets a random number with an exponential distribution. The sampler divides this number by the token's probability,
and selects the token with the lowest ratio. This is the Gumbel-max trick without logarithms. The random number depends only on
the seed, the position and the id of the token. For equal logits, the result therefore does not depend on the other requests in
the batch, on the request's row, or on the number of steps in which the prompt was processed. The logits can differ in their
last digits, because kernels depend on the number of rows. Such a difference changes the result only if the two lowest ratios
are equal up to rounding error. Sampling from the cumulative sum would be more sensitive, because a difference in one
probability moves the borders between all later tokens.

Computing a random number for each of 32,000 tokens would take longer than the softmax. The sampler therefore selects a block
of tokens first, with one random number for each block, and then a token in this block. The probabilities of the results are
the same, because the minimum of exponential random numbers also has an exponential distribution.

With 64 rows, a vocabulary of 32,000 and one CPU thread, `softmax` takes 1 ms. Filters also sort the values of their rows. This
takes 5 ms with numpy, which uses SIMD, and 150 ms with `torch.sort` (bench/engine_sampling.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tidewire_server.generation.torch_engine.device_execution import to_device

BLOCK = 128
"""Number of tokens in a block. The probabilities of a block are added up at once."""

CACHED_VALUES = 1 << 18
"""Number of logits that are processed at once on a CPU."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request.

    At temperature 0, the most probable token is selected. If several tokens are equally probable, the one with the
    lowest id is selected.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Number of tokens to sample from, or 0 for no limit."""
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int = 0

    @property
    def filters(self) -> bool:
        return self.temperature > 0 and (
            self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1
        )


def sample(logits: torch.Tensor, sampling: Sequence[Sampling], positions: Sequence[int]) -> torch.Tensor:
    """Sample one token for each row of a batch of logits.

    Args:
        logits: Logits, [B, V], float32.
        sampling: Sampling parameters of each row.
        positions: Position of the sampled token in its sequence, for each row.

    Returns:
        Token ids, [B], int64.
    """
    greedy = [i for i, s in enumerate(sampling) if s.temperature == 0]
    if len(greedy) == len(sampling):
        return logits.argmax(-1)
    keys = row_keys([s.seed for s in sampling], positions, logits.device)
    parts = [_draw(logits[block], sampling[block], keys[block]) for block in row_blocks(logits)]
    tokens = torch.cat(parts)
    if greedy:
        rows = to_device(greedy, logits.device)
        tokens.index_copy_(0, rows, logits[rows].argmax(-1))
    return tokens


def row_blocks(logits: torch.Tensor) -> list[slice]:
    """Divide the rows of a batch into blocks that fit into the cache of a CPU. A GPU processes all rows at once.

    Without blocks, each operation on 64 rows of 32,000 values would write 8 MB to newly allocated memory, and filters would
    take twice as long.
    """
    rows, size = logits.shape
    step = max(1, CACHED_VALUES // size) if logits.device.type == "cpu" else rows
    return [slice(start, start + step) for start in range(0, rows, step)]


def _draw(logits: torch.Tensor, sampling: Sequence[Sampling], keys: torch.Tensor) -> torch.Tensor:
    scaled = _scaled(logits, sampling)
    probabilities = scaled.softmax(-1)
    filtered = [i for i, s in enumerate(sampling) if s.filters]
    if len(filtered) == len(sampling):
        probabilities *= _kept(scaled, sampling)
    elif filtered:
        rows = to_device(filtered, logits.device)
        kept = _kept(scaled[rows], [sampling[i] for i in filtered])
        probabilities.index_copy_(0, rows, probabilities[rows].mul_(kept))
    return _winner(probabilities, keys)


def _winner(weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Select a random token of each row, with probabilities in proportion to the weights. Return the token ids, [B].

    Args:
        weights: Weights, [B, V], float32, not negative. Each row has a weight greater than 0.
        keys: Keys of the random numbers of each row, [B].
    """
    sums = _block_sums(weights)
    blocks = torch.arange(sums.shape[-1], device=weights.device)
    # Use negative ids for blocks, so that their random numbers differ from those of tokens.
    winner = (exponential_numbers(keys, ~blocks) / sums).argmin(-1, keepdim=True)
    ids, block = _block(weights, winner)
    return ids.gather(-1, (exponential_numbers(keys, ids) / block).argmin(-1, keepdim=True))[:, 0]


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """Return the sum of each block of `BLOCK` tokens in each row, [B, V / BLOCK] rounded up, float64."""
    rows, size = weights.shape
    whole = size - size % BLOCK
    sums = weights[:, :whole].view(rows, -1, BLOCK).sum(-1)
    if whole < size:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], -1)
    return sums.double()


def _block(weights: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and the weights of one block of each row, float64. Positions after the last token have the weight 0.

    Args:
        weights: Weights, [B, V].
        index: Index of the block to return for each row, [B, 1].
    """
    size = weights.shape[-1]
    ids = index * BLOCK + torch.arange(min(BLOCK, size), device=weights.device)
    inside = ids.clamp(max=size - 1)
    return inside, weights.gather(-1, inside).double() * (ids < size)


def processed_logits(logits: torch.Tensor, sampling: Sequence[Sampling]) -> torch.Tensor:
    """Return the logits of the distribution from which `sample` selects a token.

    Args:
        logits: Logits, [B, V], float32.
        sampling: Sampling parameters of each row.

    Returns:
        Logits after temperature and filters, [B, V]. They are minus infinity for each token that cannot be sampled.
    """
    processed = _scaled(logits, sampling)
    for i, s in enumerate(sampling):
        if s.temperature == 0:
            processed[i].fill_(-torch.inf).index_fill_(0, logits[i].argmax(-1, keepdim=True), 0.0)
        elif s.filters:
            row = processed[i : i + 1]
            row.masked_fill_(_kept(row, [s]) == 0, -torch.inf)
    return processed


def _scaled(logits: torch.Tensor, sampling: Sequence[Sampling]) -> torch.Tensor:
    """Divide the logits by the temperature, and return a new tensor. Rows with temperature 0 are not divided."""
    temperature = to_device([s.temperature or 1.0 for s in sampling], logits.device)
    return logits / temperature[:, None]


# ---- filters ---------------------------------------------------------------------------------------------------


def _kept(scaled: torch.Tensor, sampling: Sequence[Sampling]) -> torch.Tensor:
    """Compute which tokens pass the filters `top_k`, `top_p`, `min_p` and `typical_p`, in this order.

    Tokens are ordered by descending logit, then by ascending id. `top_k` keeps the first k tokens, and renormalizes their
    probabilities. `top_p` keeps the shortest prefix whose probabilities add up to at least p. `min_p` keeps the tokens whose
    probability is at least this fraction of the highest probability. The remaining probabilities are renormalized again.
    `typical_p` then keeps the tokens whose log-probability is closest to the expected log-probability, until their
    probabilities add up to at least p.

    Args:
        scaled: Logits divided by the temperature, [B, V].
        sampling: Parameters of each row.

    Returns:
        1 for each token that can be sampled and 0 for the others, [B, V], float32. Each row has at least one 1.
    """
    device, size = scaled.device, scaled.shape[-1]
    kept = None
    if any(s.top_k or s.top_p < 1 for s in sampling):
        ordered = _descending(scaled)
        top_k = to_device([min(s.top_k or size, size) for s in sampling], device)
        if any(s.top_p < 1 for s in sampling):
            weights = ordered.softmax(-1)
            if any(s.top_k for s in sampling):
                weights *= torch.arange(size, device=device) < top_k[:, None]
            top_p = to_device([s.top_p for s in sampling], device, torch.float64)
            shortest = prefix_lengths(weights, top_p)
            top_k = torch.where(top_p < 1, torch.minimum(shortest, top_k), top_k)
        kept = _prefix(scaled, ordered, top_k)
    if any(s.min_p > 0 for s in sampling):
        min_p = to_device([s.min_p for s in sampling], device)[:, None]
        enough = scaled >= scaled.amax(-1, keepdim=True) + min_p.log()
        kept = enough.float() if kept is None else kept * enough
    if any(s.typical_p < 1 for s in sampling):
        rest = scaled if kept is None else scaled.masked_fill(kept == 0, -torch.inf)
        typical = _typical(rest, [s.typical_p for s in sampling])
        kept = typical if kept is None else kept * typical
    return torch.ones_like(scaled) if kept is None else kept


def _typical(scaled: torch.Tensor, typical_p: Sequence[float]) -> torch.Tensor:
    logprobs = scaled.log_softmax(-1)
    probabilities = logprobs.exp()
    expected = torch.where(probabilities > 0, probabilities * logprobs, 0.0).sum(-1, keepdim=True)
    closeness = -(logprobs - expected).abs()
    order = _descending_order(closeness)
    mass = to_device(typical_p, scaled.device, torch.float64)
    count = prefix_lengths(probabilities.gather(-1, order), mass)
    count = torch.where(mass < 1, count, scaled.shape[-1])
    return _prefix(closeness, closeness.gather(-1, order), count)


def _descending(x: torch.Tensor) -> torch.Tensor:
    """Sort the values of each row in descending order."""
    if x.device.type == "cpu":
        return torch.from_numpy(np.sort(-x.numpy(), axis=-1)).neg_()
    return x.sort(dim=-1, descending=True).values


def _descending_order(x: torch.Tensor) -> torch.Tensor:
    """Return the indices that sort each row in descending order. The order of equal values is not defined."""
    if x.device.type == "cpu":
        return torch.from_numpy(np.argsort(-x.numpy(), axis=-1))
    return x.argsort(dim=-1, descending=True)


def _prefix(scaled: torch.Tensor, ordered: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return 1 for the first `count` tokens of each row and 0 for the others. Tokens are ordered by descending logit, then by
    ascending id.

    Args:
        scaled: Values, [B, V].
        ordered: The values of each row in descending order.
        count: Number of tokens, [B], from 1 to V.
    """
    last = ordered.gather(-1, count[:, None] - 1)
    kept = torch.empty_like(scaled)
    torch.ge(scaled, last, out=kept)
    # Tokens with the same value as the last one are still kept. Remove those with the highest ids. On a GPU, treat all rows as
    # rows with equal values, because the host would have to wait for the device to find them.
    if scaled.device.type != "cpu":
        level = scaled == last
        above = (scaled > last).sum(-1, keepdim=True)
        return kept.mul_(~(level & (level.cumsum(-1) > count[:, None] - above)))
    after = ordered.gather(-1, count[:, None].clamp(max=scaled.shape[-1] - 1))
    tied = ((after == last)[:, 0] & (count < scaled.shape[-1])).nonzero()[:, 0]
    if len(tied):
        level = scaled[tied] == last[tied]
        above = (scaled[tied] > last[tied]).sum(-1, keepdim=True)
        kept[tied] *= ~(level & (level.cumsum(-1) > count[tied, None] - above))
    return kept


def prefix_lengths(weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return the length of the shortest prefix of each row whose sum reaches a share of the row's total, [B], int64.

    The weights are added up in blocks, so that only one block of each row needs a cumulative sum of its elements.

    Args:
        weights: Weights, [B, V], float32, not negative.
        share: Share of the total, [B], float64, greater than 0 and at most 1.
    """
    sums = _block_sums(weights)
    until = sums.cumsum(-1)
    found, target = _first_reaching(until, share[:, None])
    # Fraction of the block's sum up to the target. Because of rounding, the sum of a block differs slightly from the
    # cumulative sum of its elements. A fraction applies to both, but a difference would not.
    part = 1 - (until.gather(-1, found) - target) / sums.gather(-1, found)
    _, block = _block(weights, found)
    offset, _ = _first_reaching(block.cumsum(-1), part.clamp_(2.0**-60, 1.0))
    return (found * BLOCK + offset)[:, 0].clamp_(max=weights.shape[-1] - 1) + 1


def _first_reaching(until: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first index at which a cumulative sum reaches a share of the total, and the value to reach, [B, 1]."""
    target = share * until[:, -1:]
    # Rows with NaN do not reach the value. Their token is discarded, but its id must be valid.
    return torch.searchsorted(until, target).clamp_(max=until.shape[-1] - 1), target


# ---- random numbers --------------------------------------------------------------------------------------------


def row_keys(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> torch.Tensor:
    """Hash the seed and the position of each row. The results are the keys of `exponential_numbers`, [B], int64."""
    state = _mix(to_device(seeds, device, torch.int64) + _GOLDEN)
    return _mix(state + to_device(positions, device, torch.int64) * _GOLDEN)


def exponential_numbers(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Compute random numbers with an exponential distribution, [B, N], float64. Each is a hash of a key and an id.

    Args:
        keys: Keys of the rows, [B].
        ids: Ids, [N] or [B, N].
    """
    state = _mix(keys[:, None] + ids * _GOLDEN)
    return -((_shifted(state, 12).double() + 0.5) * 2.0**-52).log()


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Hash 64-bit integers with SplitMix64, a bijection with a good avalanche effect."""
    x = (x ^ _shifted(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ _shifted(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift 64-bit integers to the right, and fill with zeros instead of the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
