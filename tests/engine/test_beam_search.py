"""Beam searches, compared with transformers, and what a reader sees of them: rollbacks and the stable prefix."""

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from support.line_counts import line_count
from support.model_checkpoints import (
    CONTEXT,
    Output,
    byte_level_tokenizer,
    collect,
    crafted_checkpoint,
    generate,
    generate_one,
    random_tokenizer,
    save,
)
from support.reference_server import QUICK, serving
from tidewire import Client
from tidewire.protocol import strict_json
from tidewire_server import Server
from tidewire_server.errors import ProblemError
from tidewire_server.generation.engine_interface import Delta, EngineError
from tidewire_server.generation.generate_endpoint import add_engine
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.beam_search import BeamSearch, Token
from tidewire_server.generation.torch_engine.detokenizer import OutputText
from tidewire_server.generation.torch_engine.models.llama_model import LlamaModel
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load
from tidewire_server.generation.vocabulary import Vocabulary

Start = Callable[..., TorchEngine]
PROMPTS = ["def f(x):\n", "return", "x" * 40]
ENDS = [*range(4, 265, 13)]
SIZES = {
    "vocab_size": random_tokenizer().get_vocab_size(),
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": ENDS,
    "pad_token_id": None,
}
CONFIGS = [
    LlamaConfig(**SIZES, intermediate_size=48, num_key_value_heads=2),
    Qwen3Config(**SIZES | {"eos_token_id": None}, intermediate_size=48, num_key_value_heads=2, head_dim=8),
    GPT2Config(
        **{name: SIZES[name] for name in ("vocab_size", "initializer_range", "bos_token_id")},
        eos_token_id=212,
        n_layer=2,
        n_embd=32,
        n_head=4,
        n_positions=CONTEXT,
    ),
]
LEADER_CHANGES = {"a": {"b": 5.0, "c": 4.8}, "b": {}, "c": {"d": 20.0}, "d": {"e": 20.0}, "e": {"f": 20.0}}
"""After "a", the text "b" is the most probable. One token later it is "cd", because any token may follow "b"."""


def beams(prompt: str, num_beams: int, **members: object) -> Generate:
    return Generate(prompt=prompt, num_beams=num_beams, **{"max_tokens": 12, "logprobs": True, **members})


def ids_of_transformers(model: Any, tokenizer: Any, request: Generate) -> list[int]:
    ids = tokenizer(request.prompt, return_tensors="pt")["input_ids"]
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.max_tokens,
        do_sample=False,
        num_beams=request.num_beams,
        length_penalty=request.length_penalty,
        pad_token_id=0,
    )
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_tokens_equal_those_of_transformers_alone_and_in_a_batch(
    start: Start, tmp_path: Path, config: PreTrainedConfig
):
    torch.manual_seed(5)
    folder = save(tmp_path, AutoModelForCausalLM.from_config(config), random_tokenizer())
    checkpoint = load(folder, device="cpu")
    assert isinstance(checkpoint.model, LlamaModel) is (config.model_type == "llama")
    requests = [
        beams(PROMPTS[0], 4),
        beams(PROMPTS[1], 2, length_penalty=0.0),
        beams(PROMPTS[2], 5, length_penalty=2.5),
    ]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = [ids_of_transformers(model, tokenizer, request) for request in requests]
    # The searches need more slots than there are, and the longest prompt is read in several steps.
    engine = start(checkpoint, slots=8, step_tokens=16)
    ordinary = Generate(prompt="import", max_tokens=25, seed=3, logprobs=True)
    (alone,) = generate(engine, requests[0])
    assert alone.token_ids == expected[0]
    (plain,) = generate(engine, ordinary)
    *together, mixed = generate(engine, *requests, ordinary)
    assert [output.token_ids for output in together] == expected
    assert mixed.token_ids == plain.token_ids
    reasons = {output.finish_reason for output in together}
    assert ("stop" in reasons) is (config.eos_token_id is not None)


def test_only_live_hypothesis_of_the_first_step_shares_its_prompt_with_all_slots(
    start: Start, tmp_path: Path
):
    """Three of the four candidates of the first step are stop strings, so only one of two hypotheses continues."""
    torch.manual_seed(3)
    letters = byte_level_tokenizer([*"abcdefghijklmnopqrstuvwxyz"])
    config = LlamaConfig(**SIZES | {"vocab_size": 27, "eos_token_id": None}, intermediate_size=48)
    folder = save(tmp_path, AutoModelForCausalLM.from_config(config), letters)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine = start(folder, slots=2)
    for prompt in ["sample", "z" * 40, "hello", "quick"]:
        ids = torch.tensor([letters.encode(prompt).ids])
        with torch.no_grad():
            stops = model(ids).logits[0, -1].topk(4).indices[[0, 2, 3]]
        members: dict[str, Any] = {"num_beams": 2, "length_penalty": 9.0}
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[lambda texts, _, stops=stops: torch.isin(texts[:, -1], stops)],
            **members,
        )
        found = generate_one(
            engine,
            prompt=prompt,
            max_tokens=12,
            stop=[letters.id_to_token(int(stop)) for stop in stops],
            logprobs=True,
            **members,
        )
        assert found.token_ids == expected[0, ids.shape[1] :].tolist()
        assert len(found.token_ids) > 2
        with torch.no_grad():
            exact = model(expected).logits[0, ids.shape[1] - 1 : -1].log_softmax(-1)
        chosen = exact.gather(-1, torch.tensor(found.token_ids)[:, None])
        assert found.logprobs == pytest.approx(chosen[:, 0].tolist(), abs=2e-4)


def test_log_probabilities_are_those_of_the_best_hypothesis(start: Start, tmp_path: Path):
    torch.manual_seed(5)
    folder = save(tmp_path, AutoModelForCausalLM.from_config(CONFIGS[1]), random_tokenizer())
    found = generate_one(
        start(folder),
        prompt=PROMPTS[0],
        num_beams=4,
        max_tokens=20,
        top_logprobs=3,
        ranks=True,
        token_text=True,
        prompt_logprobs=0,
        logprob_decimals=6,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([found.prompt_token_ids + found.token_ids])).logits[0]
    exact = logits[len(found.prompt_token_ids) - 1 : -1].log_softmax(-1)
    chosen = exact.gather(-1, torch.tensor(found.token_ids)[:, None])
    assert found.logprobs == pytest.approx(chosen[:, 0].tolist(), abs=2e-5)
    assert found.top_ids == exact.topk(3).indices.tolist()
    assert found.ranks == ((exact > chosen).sum(-1) + 1).tolist()
    assert max(found.ranks) > 1, "the best hypothesis is not the greedy text"
    assert "".join(found.token_text) == "".join(found.text)


def never_ending(logits: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return logits with which no text ends, except as the given ones say."""
    return {token: {"<|end|>": -20.0} | logits.get(token, {}) for token in "abcdefghijklmno"}


def test_end_of_a_text_counts_only_if_it_is_among_the_best_continuations(start: Start, tmp_path: Path):
    """The end after "c" is the third candidate of two beams. If it counted, the search would end with "b"."""
    logits = {
        "a": {"b": 5.0, "c": 4.9},
        "b": {"<|end|>": 3.0, "d": 2.9},
        "c": {"<|end|>": 1.5, "e": -20.0},
        "d": {"e": 0.5},
        "e": {"e": 20.0},
    }
    engine = start(crafted_checkpoint(tmp_path, list("abcdefghijklmno"), never_ending(logits)))
    assert "".join(generate_one(engine, prompt="a", num_beams=2, max_tokens=12).text) == "bd" + "e" * 10


def test_search_continues_if_the_most_probable_tokens_end_the_text(start: Start, tmp_path: Path):
    """Three of the four most probable tokens end the text, but the search needs a second one that does not."""
    first = {"<|end|>": 4.0, "e": 3.9, "b": 3.8, "c": 3.7, "f": 3.6}
    logits = {"a": first, "e": {"f": -20.0}, "f": {"f": 20.0}}
    folder = crafted_checkpoint(tmp_path, list("abcdefghijklmno"), never_ending(logits))
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2, 3]}')
    found = generate_one(start(folder), prompt="a", num_beams=2, max_tokens=12)
    assert ("".join(found.text), found.finish_reason) == ("f" * 12, "length")


def test_stop_string_ends_a_hypothesis(start: Start, tmp_path: Path):
    engine = start(crafted_checkpoint(tmp_path, list("abcdefghijklmno"), LEADER_CHANGES))
    found = generate_one(engine, prompt="a", num_beams=2, max_tokens=8, stop="de", logprobs=True)
    assert ("".join(found.text), found.finish_reason) == ("c", "stop")
    assert len(found.token_ids) == 3


class Stepwise:
    """A checkpoint whose model computes one step for each call of `step`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._permits = threading.Semaphore(0)
        self._model = checkpoint.model
        self.checkpoint = replace(checkpoint, model=self._run)

    def step(self, count: int = 1) -> None:
        self._permits.release(count)

    def _run(self, **arguments: Any) -> torch.Tensor:
        if not self._permits.acquire(timeout=5):
            raise TimeoutError("the test did not allow another step")
        return self._model(**arguments)


def logged_changes(
    folder: Path, start: Start, logits: dict[str, dict[str, float]], **members: object
) -> tuple[list[list[Any]], Any]:
    """Return the ops of the first four steps of a search, and the item at the end of its job."""
    checkpoint = load(crafted_checkpoint(folder, [*"abcdefghijklmn", "bc"], logits), device="cpu")
    stepwise = Stepwise(checkpoint)
    server = Server(**QUICK, merge_window=0.0)
    add_engine(server, start(stepwise.checkpoint, slots=2))
    with serving(server) as peer:
        job = peer.start("generate", {"prompt": "a", "num_beams": 2, "max_tokens": 5} | members)
        found = []
        with peer.stream(job) as reading:
            for _ in range(4):
                stepwise.step()
                diff: Any = strict_json.loads(reading.until_text('["a","/items/0/value/text"').data)
                found.append(diff["ops"] if isinstance(diff, dict) else diff)
            stepwise.step(10)
            assert [event.type for event in reading][-1] == "done"
        return found, peer.job(job)["state"]["items"][0]


def test_rollback_of_the_text_and_its_columns_is_one_event(start: Start, tmp_path: Path):
    (first, second, *_), item = logged_changes(tmp_path, start, LEADER_CHANGES, logprobs=True)
    text, ids, logprobs = (f"/items/0/value/{name}" for name in ("text", "token_ids", "logprobs"))
    assert [op[:2] for op in first] == [["a", text], ["a", ids], ["a", logprobs]]
    assert first[0] == ["a", text, "b"]
    assert second[:5] == [
        *(["t", text, 1], ["t", ids, 1], ["t", logprobs, 1]),
        *(["a", text, "cd"], ["a", ids, [3, 4]]),
    ]
    value = item["value"]
    assert value["text"].startswith("cdef")
    assert len(value["token_ids"]) == len(value["logprobs"]) == 5
    assert item["stable"] == {"/text": len(value["text"])}


def test_logged_columns_of_a_search_equal_those_of_the_engine(start: Start, random_checkpoint: Checkpoint):
    """The engine delivers JSON, and rollbacks change the columns. The client verifies the digest of the result."""
    engine = start(random_checkpoint)
    members = {"num_beams": 4, "max_tokens": 40, "ranks": True, "prompt_logprobs": 1}
    members |= {"top_logprobs": 2, "token_text": True, "ties": "count", "logprob_token_ids": [1, 2]}
    request = Generate(prompt=PROMPTS[0], **members)
    (expected,) = generate(engine, request)
    server = Server(**QUICK)
    add_engine(server, engine)
    with serving(server) as peer, Client(peer.url) as client:
        found = client.submit("generate", prompt=PROMPTS[0], **members).result()
    assert found["text"] == "".join(expected.text)
    for name in [*request.columns[1:], *request.prompt_columns]:
        assert found[name] == getattr(expected, name), name


def test_text_is_only_truncated_after_the_prefix_that_both_hypotheses_share(start: Start, tmp_path: Path):
    logits = {"a": {"b": 5.0, "bc": 4.8}, "b": {}, "bc": {"d": 20.0}, "d": {"e": 20.0}, "e": {"f": 20.0}}
    text = "/items/0/value/text"
    (first, second, *_), item = logged_changes(tmp_path, start, logits)
    assert (first, second) == ([["a", text, "b"]], [["a", text, "cd"]])
    assert item["value"]["text"].startswith("bcdef")


def test_stable_text_is_never_retracted_and_iter_text_yields_it(start: Start, random_checkpoint: Checkpoint):
    engine = start(random_checkpoint)
    request = {"prompt": PROMPTS[0], "num_beams": 4, "max_tokens": 40, "echo": True}
    rows: list[Any] = []
    retracted = stable = 0

    async def read() -> None:
        nonlocal retracted, stable
        async for delta in engine.generate(Generate(**request)):
            kept = len(rows) - delta.retracted
            assert kept >= stable, "a stable token was retracted"
            assert delta.stable is not None
            assert stable <= delta.stable <= kept + len(delta.rows)
            rows[kept:], stable = delta.rows, delta.stable
            retracted += delta.retracted

    asyncio.run(read())
    assert retracted > 0
    assert (len(rows), stable) == (40, 40)
    server = Server(**QUICK)
    add_engine(server, engine)
    with serving(server) as peer, Client(peer.url) as client:
        pieces = [*client.submit("generate", **request).iter_text()]
    assert "".join(pieces) == PROMPTS[0] + "".join(row[0] for row in rows)
    assert pieces[0].startswith(PROMPTS[0]), "the prompt is stable from the start"


def words() -> OutputText:
    """Return a text of 8 different tokens that ends with token 0."""
    return OutputText(Generate(max_tokens=None), Vocabulary([b"word"] * 8), {0})


def path_of(token: Token) -> list[Token]:
    path = [token]
    while path[-1].before is not None:
        path.append(path[-1].before)
    return path[::-1]


def test_stable_tokens_are_those_that_all_hypotheses_share():
    chance = random.Random(4)
    values = set()
    for _ in range(200):
        search = BeamSearch(3, end_tokens=1, length_penalty=chance.random(), text=words())
        shown: list[Token] = []
        scores = [0.0]
        for _ in range(30):
            # Good candidates of the first hypothesis make the others die out.
            indexes = chance.sample(range(8 * (1 if chance.random() < 0.4 else len(search.live))), 6)
            scores = sorted(scores[0] - chance.random() for _ in indexes)[::-1]
            progress = search.commit(search.choose(scores, indexes, 8))
            shown = shown[: len(shown) - progress.retracted] + progress.added
            if progress.reason is not None:
                break
            paths = [path_of(one.last)[1:] for one in [*search.live, *search._ended[:1]]]
            shared = [*takewhile(lambda tokens: len(set(tokens)) == 1, zip(*paths, strict=False))]
            assert shown in paths
            assert progress.stable == len(shared)
            values.add(progress.stable)
        else:
            continue
        assert progress.stable == len(shown)
    assert len(values) > 10


def test_cost_of_a_step_does_not_grow_with_the_text():
    """Two hypotheses differ in their first token, so that no token is stable."""

    def lines(steps: int) -> int:
        search = BeamSearch(2, end_tokens=1, length_penalty=1.0, text=words())

        def run() -> None:
            search.commit(search.choose([-0.1, -0.2, -0.3], [0, 1, 2], 8))
            for step in range(1, steps):
                progress = search.commit(search.choose([-step - 0.1, -step - 0.2], [5, 13], 8))
                assert progress.stable == 0

        return line_count(run)

    assert lines(400) <= 2.1 * lines(200)


def test_blocks_that_are_not_read_are_merged():
    whole = Delta([("a",), ("b",)], stable=0)
    whole.extend(Delta([("c",)], retracted=1, stable=1))
    assert ([*whole.rows], whole.retracted, whole.stable) == ([("a",), ("c",)], 0, 1)
    later = Delta([("d",)], retracted=1, stable=0)
    later.extend(Delta([("e",)], "stop", retracted=3, stable=2))
    assert (later.rows, later.retracted, later.stable) == ([("e",)], 3, 2)


def refusal_of(server: Server, **members: object) -> tuple[str, str | None, str]:
    with pytest.raises(ProblemError) as refusal:
        server.call("generate", **members)
    problem = refusal.value.problem
    return problem.code, problem.pointer, str(problem.detail)


@pytest.mark.parametrize(
    ("settings", "most"),
    [({}, 8), ({"slots": 3}, 3), ({"max_num_beams": 4}, 4), ({"slots": 64, "max_num_beams": 64}, 64)],
)
def test_num_beams_is_accepted_up_to_its_limit_and_refused_beyond(
    start: Start, random_checkpoint: Checkpoint, settings: dict[str, int], most: int
):
    server = Server()
    engine = start(random_checkpoint, context=16, **settings)
    add_engine(server, engine)
    schema: Any = server.endpoints["generate"].input.schema
    assert (engine.caps.max_num_beams, schema["properties"]["num_beams"]["maximum"]) == (most, most)
    assert server.call("generate", prompt="a", num_beams=most, max_tokens=3)["finish_reason"] == "length"
    code, pointer, detail = refusal_of(server, prompt="a", num_beams=most + 1)
    assert (code, pointer) == ("invalid_input", "/input/num_beams")
    assert str(most) in detail
    assert asyncio.run(engine.stats()).running == 0


@pytest.mark.parametrize("settings", [{"slots": 1}, {"max_num_beams": 1}])
def test_engine_without_beams_neither_declares_them_nor_rollbacks(
    start: Start, random_checkpoint: Checkpoint, settings: dict[str, int]
):
    server = Server()
    add_engine(server, start(random_checkpoint, **settings))
    served = server.endpoints["generate"]
    assert not {"num_beams", "length_penalty"} & set(served.input.schema["properties"])
    assert served.capabilities(1).rollback is False
    code, pointer, _ = refusal_of(server, num_beams=2)
    assert (code, pointer) == ("invalid_input", "/input/num_beams")


def test_members_that_have_no_effect_in_a_search_are_refused_by_name(start: Start, tmp_path: Path):
    engine = start(crafted_checkpoint(tmp_path, list("abcd"), {}), slots=4)
    assert engine.caps.max_num_beams == 2, "five tokens are too few for the candidates of three beams"
    server = Server()
    add_engine(server, engine)
    for members in (
        {"temperature": 0.7},
        {"top_p": 0.9, "top_k": 5},
        {"n": 2},
        {"json_schema": {"type": "integer"}},
        {"logit_bias": {"4": 1.0}},
        {"repetition_penalty": 1.1, "presence_penalty": 1.0, "frequency_penalty": 1.0},
        {"min_p": 0.1, "typical_p": 0.5},
        {"logprobs_mode": "processed"},
    ):
        code, pointer, detail = refusal_of(server, prompt="a", num_beams=2, **members)
        assert (code, pointer) == ("invalid_input", f"/input/{next(iter(members))}")
        assert all(name in detail for name in [*members, "num_beams"])


def test_length_penalty_without_a_search_is_refused(start: Start, random_checkpoint: Checkpoint):
    server = Server()
    add_engine(server, start(random_checkpoint))
    assert refusal_of(server, length_penalty=2.0)[:2] == ("invalid_input", "/input/length_penalty")
    assert server.call("generate", prompt="a", num_beams=2, temperature=0.0, seed=3, max_tokens=2)["text"]


def failing(checkpoint: Checkpoint, fails: Callable[[int], bool]) -> Checkpoint:
    """Return a checkpoint whose model runs out of memory after its forward pass, depending on the number of texts."""

    def model(**arguments: Any) -> torch.Tensor:
        logits = checkpoint.model(**arguments)
        if fails(len(arguments["wanted"])):
            raise MemoryError
        return logits

    return replace(checkpoint, model=model)


def test_step_that_is_repeated_in_parts_gives_the_same_tokens(start: Start, random_checkpoint: Checkpoint):
    requests = [
        beams(PROMPTS[0], 3),
        beams(PROMPTS[1], 2),
        Generate(prompt="a", seed=1, max_tokens=9, logprobs=True),
    ]
    expected = generate(start(random_checkpoint), *requests)
    engine = start(failing(random_checkpoint, lambda texts: texts > 3))
    assert [found.token_ids for found in generate(engine, *requests)] == [e.token_ids for e in expected]


def test_search_that_does_not_fit_into_the_memory_fails_alone(start: Start, random_checkpoint: Checkpoint):
    engine = start(failing(random_checkpoint, lambda texts: texts > 3), slots=6)

    async def both() -> list[Output | BaseException]:
        requests = (beams(PROMPTS[0], 4), beams(PROMPTS[1], 2))
        return await asyncio.gather(*(collect(engine, each) for each in requests), return_exceptions=True)

    large, small = asyncio.run(both())
    assert isinstance(large, EngineError)
    assert "memory does not suffice" in str(large)
    assert isinstance(small, Output)
    assert len(small.token_ids) == 12
    again = generate(engine, *(beams(prompt, 2) for prompt in PROMPTS))  # all slots are free again
    assert [len(output.token_ids) for output in again] == [12] * 3


def test_invalid_logits_fail_the_search(start: Start, tmp_path: Path):
    folder = crafted_checkpoint(
        tmp_path, list("abcdefghijklmno"), {"e": {"a": 5.0}, "a": {"b": 1e39}, "c": {"d": 5.0}}
    )
    engine = start(folder, slots=4)
    with pytest.raises(EngineError, match="logits for the next token are invalid"):
        generate_one(engine, prompt="e", num_beams=4)
    # Otherwise a later request could read numbers that are not valid.
    assert not any(part.any() for layer in engine._runner._cache.read(slice(0, 4), CONTEXT) for part in layer)
    assert generate_one(engine, prompt="c", num_beams=4, max_tokens=3).text[0] == "d"


def test_cancelled_search_frees_all_of_its_slots(start: Start, random_checkpoint: Checkpoint):
    engine = start(random_checkpoint, slots=4)

    async def cancel_one_and_run_another() -> Output:
        first = engine.generate(beams("a", 4, max_tokens=100))
        await anext(first)
        await first.aclose()
        return await collect(engine, beams("b", 4))

    assert len(asyncio.run(cancel_one_and_run_another()).token_ids) == 12
    stats = asyncio.run(engine.stats())
    assert (stats.running, stats.waiting) == (0, 0)
