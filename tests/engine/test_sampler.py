import pytest
import torch

from tidewire_server.generation.torch_engine.sampler import Sampling, allowed, gumbel, sample

CPU = torch.device("cpu")


def sampling(**changes: float) -> Sampling:
    settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 0} | changes
    return Sampling(**settings)


def draw(logits: torch.Tensor, times: int, **settings: float) -> torch.Tensor:
    """Return how often each token is sampled at many positions of one seed."""
    rows = logits.expand(times, -1)
    tokens = sample(rows, [sampling(**settings)] * times, list(range(times)))
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


def test_noise_depends_only_on_seed_position_and_token():
    alone = gumbel([2**53 - 1], [17], 50, CPU)
    shared = gumbel([3, 2**53 - 1, 4], [1, 17, 17], 100, CPU)
    assert torch.equal(alone[0], shared[1, :50])
    assert not torch.equal(shared[1], shared[2])
    assert not torch.equal(gumbel([3], [1], 50, CPU), gumbel([3], [2], 50, CPU))
    assert not torch.equal(gumbel([3], [1], 50, CPU), gumbel([3 + 2**32], [1], 50, CPU))


def test_noise_is_finite_with_mean_and_variance_of_the_gumbel_distribution():
    noise = gumbel(list(range(64)), [5] * 64, 32_768, CPU).double()
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.57722, abs=0.003)
    assert noise.var().item() == pytest.approx(1.64493, abs=0.01)


def test_adjacent_seeds_and_positions_have_uncorrelated_noise():
    noise = gumbel([0, 1, 0, 1], [0, 0, 1, 1], 65_536, CPU)
    correlation = torch.corrcoef(noise) - torch.eye(4)
    assert correlation.abs().max().item() < 0.02


def test_temperature_zero_takes_the_highest_logit_and_the_lowest_id_in_a_tie():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    assert sample(logits, [sampling(temperature=0.0)] * 2, [0, 0]).tolist() == [1, 0]
    mixed = [sampling(temperature=0.0), sampling(top_k=1)]
    assert sample(logits, mixed, [0, 0]).tolist() == [1, 0]


def test_top_k_keeps_exactly_k_tokens_and_the_lowest_ids_of_a_tie():
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]])
    assert allowed(logits, [sampling(top_k=3)]).tolist() == [[True, True, True, False, False]]
    assert allowed(logits, [sampling(top_k=100)]).all()


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    assert allowed(logits, [sampling(top_p=0.69)]).tolist() == [[False, True, False, True]]
    assert allowed(logits, [sampling(top_p=0.71)]).tolist() == [[False, True, True, True]]
    assert allowed(logits, [sampling(top_p=1e-9)]).tolist() == [[False, True, False, False]]


def test_top_p_applies_to_the_tokens_that_top_k_kept():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    both = sampling(top_k=2, top_p=0.5)  # 0.4 and 0.3 remain; renormalized, 0.571 is enough
    assert allowed(logits, [both]).tolist() == [[False, True, False, False]]


def test_min_p_keeps_tokens_relative_to_the_most_probable():
    logits = torch.tensor([[0.1, 0.4, 0.21, 0.29]]).log()
    assert allowed(logits, [sampling(min_p=0.5)]).tolist() == [[False, True, True, True]]
    assert allowed(logits, [sampling(min_p=1.0)]).tolist() == [[False, True, False, False]]


def test_filters_of_one_row_do_not_affect_other_rows():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    kept = allowed(logits, [sampling(), sampling(top_k=2), sampling(min_p=0.9)])
    assert kept.sum(-1).tolist()[:2] == [50, 2]
    assert torch.equal(kept[1:2], allowed(logits[1:2], [sampling(top_k=2)]))
    assert torch.equal(kept[2:3], allowed(logits[2:3], [sampling(min_p=0.9)]))


@pytest.mark.parametrize(
    "settings", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.3}, {"top_k": 5, "top_p": 0.6}]
)
def test_exactly_the_allowed_tokens_are_sampled(settings: dict[str, float]):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3))
    counts = draw(logits, 4000, **settings)
    kept = allowed(logits[None], [sampling(**settings)])[0]
    assert torch.equal(counts > 0, kept)
    expected = logits.masked_fill(~kept, -torch.inf).softmax(-1)
    assert torch.allclose(counts / 4000, expected, atol=0.035)
