import itertools
import math

import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

from tidewire_server.generation.torch_engine.sampling.sampler import (
    Sampling,
    exponential_numbers,
    prefix_lengths,
    processed_logits,
    row_keys,
    sample,
)

WARPERS = {
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": TypicalLogitsWarper,
}


def allowed(logits: torch.Tensor, settings: list[Sampling]) -> torch.Tensor:
    """Return a mask of the tokens that can be sampled."""
    return processed_logits(logits, settings) > -torch.inf


def draw(logits: torch.Tensor, times: int, **settings: float) -> torch.Tensor:
    """Return how often each token is sampled at many positions of one seed."""
    rows = logits.expand(times, -1)
    tokens = sample(rows, [Sampling(**settings)] * times, list(range(times)))
    return tokens.bincount(minlength=len(logits))


def test_samples_follow_the_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    times = 40_000
    expected = logits.softmax(-1) * times
    counts = draw(logits, times)
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_squared < 23.5  # 4 degrees of freedom: exceeded by chance in one of 10,000 seeds


def test_temperature_divides_the_logits():
    logits = torch.tensor([0.0, 1.0, 2.0])
    counts = draw(logits, 20_000, temperature=0.5)
    expected = (logits / 0.5).softmax(-1)
    assert torch.allclose(counts / 20_000, expected, atol=0.012)


def numbers(seeds: list[int], positions: list[int], ids: list[int]) -> torch.Tensor:
    cpu = torch.device("cpu")
    return exponential_numbers(row_keys(seeds, positions, cpu), torch.tensor(ids))


def test_random_number_depends_only_on_seed_position_and_id():
    alone = numbers([2**53 - 1], [17], [5])
    shared = numbers([3, 2**53 - 1, 4, 3, 3 + 2**32], [1, 17, 17, 2, 1], [4, 5, -5])
    assert alone[0, 0] == shared[1, 1]
    assert len({*shared.flatten().tolist()}) == 15


def test_random_numbers_are_exponential_and_uncorrelated():
    found = torch.stack(
        [numbers([seed] * 256, list(range(256)), list(range(256))).flatten() for seed in range(4)]
    )
    assert 0 < found.min().item() < found.max().item() < 40
    uniform = (-found).exp()
    counts = torch.histc(uniform.float(), 64, 0, 1)
    expected = found.numel() / 64
    assert ((counts - expected) ** 2 / expected).sum().item() < 120  # 63 degrees of freedom
    next_id, next_position = uniform[:, 1:-255], uniform[:, 256:]
    neighbors = torch.cat([uniform[:, :-256], next_id, next_position])
    assert (torch.corrcoef(neighbors) - torch.eye(12)).abs().max().item() < 0.02


def test_samples_of_several_blocks_follow_the_softmax():
    logits = torch.randn(300, generator=torch.Generator().manual_seed(8))
    logits[[3, 130, 299]] = torch.tensor([6.0, 6.5, 6.0])
    expected = logits.softmax(-1) * 40_000
    counts = draw(logits, 40_000)
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_squared < 395  # 299 degrees of freedom: exceeded by chance in less than one of 5,000 seeds


def test_rounding_errors_change_only_tokens_that_nearly_tie():
    """The errors are as large as those of another batch size. Borders of a cumulative sum would move by them."""
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(4000, 2000, generator=generator)
    errors = torch.randn(4000, 2000, generator=generator) * 1e-3
    settings = [Sampling(seed=1)] * 4000
    before, after = (sample(one, settings, list(range(4000))) for one in (logits, logits + errors))
    assert (
        before != after
    ).sum() <= 10  # about 100 borders of a cumulative sum would move past a random number


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 1000])
def test_prefix_is_the_shortest_whose_sum_reaches_the_share(size: int):
    weights = torch.rand(50, size, generator=torch.Generator().manual_seed(size))
    weights[:, ::3] *= weights[:, ::3] > 0.5  # some weights are 0
    weights[:, size // 2] = 1.0
    share = torch.linspace(0.01, 1, 50, dtype=torch.float64)
    cumulative = weights.double().cumsum(-1)
    expected = (cumulative < share[:, None] * cumulative[:, -1:]).sum(-1).clamp(max=size - 1) + 1
    found = prefix_lengths(weights, share)
    assert (found - expected).abs().max() <= 1  # float32 sums of blocks
    assert (found == expected).float().mean() > 0.95


def test_temperature_zero_takes_the_highest_logit_and_the_lowest_id_in_a_tie():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    assert sample(logits, [Sampling(temperature=0.0)] * 2, [0, 0]).tolist() == [1, 0]
    mixed = [Sampling(temperature=0.0), Sampling(top_k=1)]
    assert sample(logits, mixed, [0, 0]).tolist() == [1, 0]


def test_top_k_keeps_exactly_k_tokens_and_the_lowest_ids_of_a_tie():
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]])
    assert allowed(logits, [Sampling(top_k=3)]).tolist() == [[True, True, True, False, False]]
    assert allowed(logits, [Sampling(top_k=100)]).all()


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    assert allowed(logits, [Sampling(top_p=0.69)]).tolist() == [[False, True, False, True]]
    assert allowed(logits, [Sampling(top_p=0.71)]).tolist() == [[False, True, True, True]]
    assert allowed(logits, [Sampling(top_p=1e-9)]).tolist() == [[False, True, False, False]]


def test_top_p_applies_to_the_tokens_that_top_k_kept():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    both = Sampling(top_k=2, top_p=0.5)  # 0.4 and 0.3 remain; renormalized, 0.571 is enough
    assert allowed(logits, [both]).tolist() == [[False, True, False, False]]


def test_min_p_keeps_tokens_relative_to_the_most_probable():
    logits = torch.tensor([[0.1, 0.4, 0.21, 0.29]]).log()
    assert allowed(logits, [Sampling(min_p=0.5)]).tolist() == [[False, True, True, True]]
    assert allowed(logits, [Sampling(min_p=1.0)]).tolist() == [[False, True, False, False]]


def test_filters_of_one_row_do_not_affect_other_rows():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    kept = allowed(logits, [Sampling(), Sampling(top_k=2), Sampling(min_p=0.9)])
    assert kept.sum(-1).tolist()[:2] == [50, 2]
    assert torch.equal(kept[1:2], allowed(logits[1:2], [Sampling(top_k=2)]))
    assert torch.equal(kept[2:3], allowed(logits[2:3], [Sampling(min_p=0.9)]))


@pytest.mark.parametrize(
    "settings", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.3}, {"top_k": 5, "top_p": 0.6}]
)
def test_exactly_the_allowed_tokens_are_sampled(settings: dict[str, float]):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3))
    counts = draw(logits, 4000, **settings)
    kept = allowed(logits[None], [Sampling(**settings)])[0]
    assert torch.equal(counts > 0, kept)
    expected = logits.masked_fill(~kept, -torch.inf).softmax(-1)
    assert torch.allclose(counts / 4000, expected, atol=0.035)


@pytest.mark.parametrize(
    "settings",
    [
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.05},
        {"typical_p": 0.6},
        {"temperature": 0.6, "top_k": 40, "top_p": 0.8, "min_p": 0.01, "typical_p": 0.9},
    ],
)
def test_filters_keep_the_same_tokens_as_those_of_transformers(settings: dict[str, float]):
    logits = torch.randn(20, 400, generator=torch.Generator().manual_seed(5)) * 2
    found = allowed(logits, [Sampling(**settings)] * 20)
    warped = logits / settings.get("temperature", 1.0)
    for name, warper in WARPERS.items():
        if name in settings:
            warped = warper(settings[name])(None, warped)
    assert torch.equal(found, warped > -torch.inf)


def test_filters_keep_the_lowest_ids_of_the_tokens_that_tie_at_the_cut():
    logits = torch.randint(0, 5, (60, 300), generator=torch.Generator().manual_seed(5)).float() / 2
    every = [Sampling(top_p=0.01 + i / 100, top_k=(i * 7) % 300) for i in range(60)]
    for row, one, kept in zip(logits.double().tolist(), every, allowed(logits, every).tolist(), strict=True):
        order = sorted(range(300), key=lambda i: (-row[i], i))[: one.top_k or None]
        until = list(itertools.accumulate(math.exp(row[i]) for i in order))
        count = 1 + sum(x < one.top_p * until[-1] - 1e-4 for x in until)
        assert [i for i, keeps in enumerate(kept) if keeps] == sorted(order[:count])


def test_rows_of_several_blocks_are_sampled_like_rows_alone():
    logits = torch.randn(40, 20_000, generator=torch.Generator().manual_seed(6))
    every = [Sampling(seed=i, top_p=0.9 if i % 3 else 1.0, temperature=float(i % 4)) for i in range(40)]
    alone = [sample(logits[i : i + 1], [one], [i]).item() for i, one in enumerate(every)]
    assert sample(logits, every, list(range(40))).tolist() == alone
