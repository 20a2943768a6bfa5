import pytest
import torch

from tidewire_server.generation.torch_engine.sampling.top_n import score, top_ids


def sorted_ids(row: list[float], n: int) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:n]


@pytest.mark.parametrize("n", [0, 1, 2, 5, 20])
def test_order_is_total_with_many_ties(n: int):
    chance = torch.Generator().manual_seed(n)
    logits = torch.randint(0, 6, (200, 20), generator=chance).float()
    logits[::7, ::3] = -torch.inf
    assert top_ids(logits, n).tolist() == [sorted_ids(row, n) for row in logits.tolist()]


def test_log_probabilities_equal_those_of_log_softmax():
    logits = torch.randn(8, 5000, generator=torch.Generator().manual_seed(0)) * 4
    chosen = torch.arange(8) * 7
    scores = score(logits, chosen, 20)
    exact = logits.double().log_softmax(-1)
    assert torch.allclose(scores.chosen.double(), exact.gather(-1, chosen[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(scores.top.double(), exact.topk(20).values, atol=1e-5)


def test_large_common_offset_of_the_logits_loses_no_precision():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    plain = score(logits, torch.tensor([2]), 4)
    shifted = score(logits + 2.0**20, torch.tensor([2]), 4)
    assert torch.equal(plain.top, shifted.top)
    assert torch.equal(plain.chosen, shifted.chosen)


def test_rank_counts_only_higher_logits():
    logits = torch.tensor([[2.0, 5.0, 5.0, 1.0]] * 4)
    assert score(logits, torch.tensor([0, 1, 2, 3]), 0).ranks.tolist() == [3, 1, 1, 4]
