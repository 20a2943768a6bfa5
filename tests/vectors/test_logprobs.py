"""Test vectors for log-probabilities, checked against the specification and run against the engine."""

import json
import math
import re
from fractions import Fraction

import pytest

from support.spec_vectors import SPEC, for_each_vector, load_vectors, parametrize_by_vector

# ---- vectors against the definitions of the chapter


def log_probabilities(logits):
    finite = [x for x in logits if x != -math.inf]
    peak = max(finite)
    log_sum = math.log(math.fsum(math.exp(x - peak) for x in finite))
    return [x - peak - log_sum for x in logits]


def sorted_by_probability(logits):
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def rank(logits, token):
    return 1 + sum(x > logits[token] for x in logits)


def logits_of(vector):
    return [-math.inf if x is None else x for x in vector["logits"]]


def close(expected, tolerance):
    """Return approximate numbers with the tolerance of the vectors; null is probability 0."""
    return [
        -math.inf if x is None else pytest.approx(x, abs=tolerance, rel=0 if tolerance == EXACT else 1e-6)
        for x in expected
    ]


TOLERANCE = load_vectors("logprobs/top")["tolerance"]
EXACT = 1e-9


@for_each_vector("logprobs/top")
def test_vector_of_candidates_agrees_with_the_specification(vector):
    logits = logits_of(vector)
    found = log_probabilities(logits)
    ids = sorted_by_probability(logits)[: vector["n"]]
    assert vector["top_ids"] == ids
    assert [found[token] for token in ids] == close(vector["top_logprobs"], EXACT)
    assert [found[vector["chosen"]]] == close([vector["logprob"]], EXACT)
    assert vector["rank"] == rank(logits, vector["chosen"])
    assert math.fsum(map(math.exp, (found[token] for token in ids))) <= 1 + EXACT


@for_each_vector("logprobs/ties")
def test_vector_of_ties_agrees_with_the_specification(vector):
    logits = logits_of(vector)
    found, order = log_probabilities(logits), sorted_by_probability(logits)
    first = order[: vector["n"]]
    tied = [token for token in order[vector["n"] :] if logits[token] == logits[first[-1]]]
    shown = tied[: vector["max_top"] - len(first)] if vector["ties"] == "all" else []
    assert vector["top_ids"] == first + shown
    assert [found[token] for token in vector["top_ids"]] == close(vector["top_logprobs"], EXACT)
    expected = {"cut": None, "count": len(tied), "all": len(tied) - len(shown)}
    assert vector.get("tie_count") == expected[vector["ties"]]


def processed_logits(logits, parameters):
    """Logits of the sampled distribution, with each input member applied as section 8.1 defines it."""
    bias = {int(token): x for token, x in parameters.get("logit_bias", {}).items()}
    logits = [(x + bias.get(token, 0)) / parameters.get("temperature", 1) for token, x in enumerate(logits)]
    order, found = sorted_by_probability(logits), log_probabilities(logits)
    kept = order[: parameters.get("top_k", 0) or None]
    reached = 0.0
    for count, token in enumerate(order, 1):
        reached += math.exp(found[token])
        if reached >= parameters.get("top_p", 1):
            kept = [token for token in kept if token in order[:count]]
            break
    least = math.log(parameters["min_p"]) + found[order[0]] if "min_p" in parameters else -math.inf
    return [x if token in kept and found[token] >= least else -math.inf for token, x in enumerate(logits)]


@for_each_vector("logprobs/processed")
def test_vector_of_a_processed_distribution_agrees_with_the_specification(vector):
    logits = processed_logits(logits_of(vector), vector["input"])
    found = log_probabilities(logits)
    assert vector["top_ids"] == sorted_by_probability(logits)
    assert [found[token] for token in vector["top_ids"]] == close(vector["top_logprobs"], EXACT)
    assert vector["ranks"] == [rank(logits, token) for token in vector["top_ids"]]


@for_each_vector("logprobs/rounding")
def test_vector_of_rounding_has_the_nearest_number(vector):
    exact, decimals, written = vector["logprob"], vector["decimals"], vector["written"]
    if exact is None:
        assert written is None
        return
    off = abs(Fraction(exact) - Fraction(str(written)))
    assert off < Fraction(1, 2 * 10**decimals), "the nearest number is less than half a step away"
    assert round(written, decimals) == written


# ---- engine against the vectors


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="the engine needs torch")


@parametrize_by_vector("logprobs/top")
def test_engine_returns_the_candidates_of_the_vector(vector, torch):
    from tidewire_server.generation.torch_engine.sampling.top_n import score

    logits = torch.tensor([logits_of(vector)], dtype=torch.float32)
    scores = score(logits, torch.tensor([vector["chosen"]]), min(vector["n"], logits.shape[1]))
    assert scores.top_ids.tolist() == [vector["top_ids"]]
    assert scores.top.tolist()[0] == close(vector["top_logprobs"], TOLERANCE)
    assert scores.chosen.tolist() == close([vector["logprob"]], TOLERANCE)
    assert scores.ranks.tolist() == [vector["rank"]]


def test_engine_returns_the_candidates_of_several_vectors_in_one_batch(torch):
    from tidewire_server.generation.torch_engine.sampling.top_n import score

    batch = [v for v in load_vectors("logprobs/top")["vectors"] if len(v["logits"]) == 4]
    scores = score(
        torch.tensor([logits_of(v) for v in batch], dtype=torch.float32),
        torch.tensor([v["chosen"] for v in batch]),
        4,
    )
    assert [ids[: v["n"]] for ids, v in zip(scores.top_ids.tolist(), batch, strict=True)] == [
        v["top_ids"] for v in batch
    ]
    assert scores.ranks.tolist() == [v["rank"] for v in batch]


@pytest.mark.parametrize(
    "vector",
    [v for v in load_vectors("logprobs/ties")["vectors"] if v["ties"] == "cut"],
    ids=lambda vector: vector["name"],
)
def test_engine_cuts_ties_as_the_vector_requires(vector, torch):
    from tidewire_server.generation.torch_engine.sampling.top_n import top_ids

    logits = torch.tensor([logits_of(vector)], dtype=torch.float32)
    assert top_ids(logits, min(vector["n"], logits.shape[1])).tolist() == [vector["top_ids"]]


@parametrize_by_vector("logprobs/rounding")
def test_engine_rounds_as_the_vector_requires(vector, torch):
    import numpy as np

    from tidewire_server.generation.torch_engine.sampling.score_columns import Scoring, values_of

    exact = -math.inf if vector["logprob"] is None else vector["logprob"]
    columns = [np.array([[exact]]), np.empty((1, 0), np.int32), np.array([1])]
    (written,) = values_of(columns, [Scoring(decimals=vector["decimals"])])
    assert json.loads(written["logprobs"]) == vector["written"]


def next_token(torch, logits, members, *, max_top=20):
    """Postprocess logits like a step of the engine, for a request with the input members."""
    from tidewire_server.generation.generate_input_and_value import Generate
    from tidewire_server.generation.torch_engine.device_execution import to_host
    from tidewire_server.generation.torch_engine.sampling.postprocess import SampledTokens
    from tidewire_server.generation.torch_engine.sampling.sequence_parameters import parameters_of

    request = Generate(**{"ranks": True, "logprob_decimals": 9, "seed": 0, **members})
    parameters = parameters_of(request, [0], size=len(logits), device=torch.device("cpu"), max_top=max_top)
    sampled = SampledTokens(torch.tensor([logits], dtype=torch.float32), [parameters], [1])
    token, values, is_number = sampled.on_host(to_host(sampled.tensors))[0]
    return token, {name: json.loads(value) for name, value in values.items()}, is_number


@parametrize_by_vector("logprobs/ties")
def test_engine_treats_ties_as_the_vector_requires(vector, torch):
    members = {"top_logprobs": min(vector["n"], vector["max_top"]), "ties": vector["ties"]}
    found = next_token(torch, logits_of(vector), members, max_top=vector["max_top"])[1]
    assert found["top_ids"] == vector["top_ids"]
    assert found["top_logprobs"] == close(vector["top_logprobs"], TOLERANCE)
    assert found.get("tie_counts") == vector.get("tie_count")


@parametrize_by_vector("logprobs/processed")
def test_engine_scores_the_processed_distribution_of_the_vector(vector, torch):
    logits = logits_of(vector)
    members = {**vector["input"], "logprobs_mode": "processed", "top_logprobs": len(logits)}
    possible = [x is not None for x in vector["top_logprobs"]]
    ranks = {}
    for seed in range(40):
        token, found, _ = next_token(torch, logits, {**members, "seed": seed})
        assert found["top_ids"] == vector["top_ids"]
        assert [-math.inf if x is None else x for x in found["top_logprobs"]] == close(
            vector["top_logprobs"], TOLERANCE
        )
        ranks[token] = found["ranks"]
    assert ranks.items() <= dict(zip(vector["top_ids"], vector["ranks"], strict=True)).items()
    assert {*ranks} <= {token for token, can_be in zip(vector["top_ids"], possible, strict=True) if can_be}


def members_served():
    from tidewire_server.generation.engine_interface import CORE_MEMBERS
    from tidewire_server.generation.torch_engine.capabilities import SUPPORTED_MEMBERS

    return CORE_MEMBERS | SUPPORTED_MEMBERS


@parametrize_by_vector("logprobs/columns")
def test_engine_returns_the_columns_of_the_vector_or_refuses_the_input(vector, torch):
    from tidewire_server.generation.engine_interface import EngineCapabilities, InputError, check_members
    from tidewire_server.generation.generate_input_and_value import Generate

    request = Generate(**vector["input"])
    caps = EngineCapabilities("m", 64, 20, 1, members_served(), None)
    if vector["input"].keys() <= caps.members:
        check_members(request, caps)
        assert request.columns[0] == "text"
        assert sorted(request.columns) == sorted(vector["columns"])
    else:
        with pytest.raises(InputError, match="is not supported"):
            check_members(request, caps)


def test_generate_value_has_the_members_of_the_schema_and_the_chapter():
    pytest.importorskip("starlette", reason="the server is not installed")
    from tidewire_server.generation.generate_input_and_value import Generate, served_value

    schema = json.loads((SPEC / "schema/generate-value.schema.json").read_text(encoding="utf-8"))
    value = served_value(Generate.model_fields, counts_rows=False)
    assert list(value.model_fields) == list(schema["properties"])
    text = (SPEC / "08-text-generation.md").read_text(encoding="utf-8")
    table = text.partition("| member | one element per | present |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines() if row))
    assert sorted(named) == sorted(schema["properties"])


def test_vocabulary_hash_changes_with_the_vocabulary():
    pytest.importorskip("starlette", reason="the server is not installed")
    from tidewire_server.generation.vocabulary import Vocabulary

    bodies = [
        Vocabulary([b"a", b"b"]),
        Vocabulary([b"a", b"c"]),
        Vocabulary([b"b", b"a"]),
        Vocabulary([b"a", b"b"], [1]),
    ]
    assert len({one.body()["hash"] for one in bodies}) == len(bodies)
    assert Vocabulary([b"a", b"b"]).body() == bodies[0].body()
