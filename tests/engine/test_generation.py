"""Generated tokens and log-probabilities, compared with plain forward passes and with transformers."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPTNeoXConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from support.model_checkpoints import (
    CONTEXT,
    Output,
    byte_alphabet,
    byte_level_tokens,
    collect,
    crafted_checkpoint,
    generate,
    generate_one,
    random_llama,
    random_tokenizer,
    save,
)
from tidewire_server.default_model import default_model
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load

Start = Callable[..., TorchEngine]
PROMPTS = ["def f(x):\n", "import re\n\nclass Tree", "return", "# naïve: ", "x" * 70]


def greedy_ids(folder: Path, prompt: str, tokens: int) -> list[int]:
    """Return the token ids that transformers generates greedily."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return out[0, inputs["input_ids"].shape[1] :].tolist()


def greedy(prompt: str, tokens: int, **members: object) -> Generate:
    return Generate(prompt=prompt, max_tokens=tokens, temperature=0.0, **{"logprobs": True, **members})


def assert_equal_up_to_rounding(one: Output, other: Output) -> None:
    """Assert equal tokens, texts, order and ranks; log-probabilities may differ by rounding."""
    for column in ("text", "token_ids", "top_ids", "ranks"):
        assert getattr(one, column) == getattr(other, column), column
    assert one.logprobs == pytest.approx(other.logprobs, abs=1.01e-4)
    for row, other_row in zip(one.top_logprobs, other.top_logprobs, strict=True):
        assert row == pytest.approx(other_row, abs=1.01e-4)


@pytest.mark.heavy
def test_greedy_tokens_of_the_bundled_model_equal_those_of_transformers(start: Start):
    prompts = [
        "def fibonacci(n):\n",
        "import os\nimport sys\n\n",
        "class Stack:\n    def push(self, item):\n",
        "# é🙂 ",
    ]
    engine = start(default_model())
    deltas = generate(engine, *(greedy(prompt, 40) for prompt in prompts))
    assert [d.token_ids for d in deltas] == [greedy_ids(default_model(), prompt, 40) for prompt in prompts]


SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SIZES, intermediate_size=48, num_key_value_heads=2, head_dim=8, initializer_range=0.3),
        GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=CONTEXT, initializer_range=0.3),
        GPTNeoXConfig(**SIZES, intermediate_size=48, initializer_range=0.3),
    ],
    ids=lambda config: config.model_type,
)
def test_other_architectures_generate_the_tokens_of_transformers(
    start: Start, tmp_path: Path, config: PreTrainedConfig
):
    tokenizer = random_tokenizer()
    config.vocab_size = tokenizer.get_vocab_size()
    config.bos_token_id = config.eos_token_id = None
    torch.manual_seed(5)
    save(tmp_path, AutoModelForCausalLM.from_config(config), tokenizer)
    deltas = generate(start(tmp_path, slots=3), *(greedy(prompt, 12) for prompt in PROMPTS))
    for delta, prompt in zip(deltas, PROMPTS, strict=True):
        ids = greedy_ids(tmp_path, prompt, 12)
        assert delta.token_ids[: len(ids)] == ids


def test_log_probabilities_equal_those_of_a_plain_forward_pass(start: Start, tmp_path: Path):
    folder = random_llama(tmp_path)
    engine = start(folder)
    request = Generate(
        prompt=PROMPTS[1],
        max_tokens=20,
        seed=4,
        temperature=1.7,
        top_logprobs=7,
        logprob_decimals=6,
        ranks=True,
    )
    delta = generate(engine, request)[0]
    prompt = AutoTokenizer.from_pretrained(folder)(PROMPTS[1])["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + delta.token_ids])).logits[0, len(prompt) - 1 : -1]
    exact = logits.log_softmax(-1)
    chosen = exact.gather(-1, torch.tensor(delta.token_ids)[:, None])
    assert delta.logprobs == pytest.approx(chosen[:, 0].tolist(), abs=2e-5)
    assert delta.ranks == ((exact > chosen).sum(-1) + 1).tolist()
    assert delta.top_ids == exact.topk(7).indices.tolist()
    for row, expected in zip(delta.top_logprobs, exact.topk(7).values.tolist(), strict=True):
        assert row == pytest.approx(expected, abs=2e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("count", [12, pytest.param(24, marks=pytest.mark.slow)])
def test_request_has_the_same_result_alone_and_in_a_batch(
    start: Start, random_checkpoint: Checkpoint, count: int
):
    requests = [
        Generate(prompt=PROMPTS[i % 5], max_tokens=8 + 5 * (i % 7), seed=i, temperature=0.2 * (i % 6), top_logprobs=i % 9,
                 top_k=(0, 5)[i % 2], top_p=(1.0, 0.8, 0.95)[i % 3], ranks=True)
        for i in range(count)
    ]  # fmt: skip
    together = generate(start(random_checkpoint, slots=5), *requests)
    alone = start(random_checkpoint, slots=1)
    for request, delta in zip(requests, together, strict=True):
        assert_equal_up_to_rounding(generate(alone, request)[0], delta)
    assert sum(len(delta.token_ids) for delta in together) > 12.5 * count


def test_prompt_read_in_chunks_has_the_same_result(start: Start, random_checkpoint: Checkpoint):
    requests = [
        Generate(prompt=p * 2, max_tokens=6, seed=1, top_logprobs=5, ranks=True)
        for p in ("x" * 50, PROMPTS[1])
    ]
    whole = generate(start(random_checkpoint), *requests)
    chunked = start(random_checkpoint, slots=2, step_tokens=7)
    for one, other in zip(whole, generate(chunked, *requests), strict=True):
        assert_equal_up_to_rounding(one, other)


def test_same_seed_reproduces_and_another_seed_differs(engine: TorchEngine):
    first, again, other = generate(
        engine, *(Generate(max_tokens=30, seed=s, logprobs=True) for s in (7, 7, 8))
    )
    assert first == again
    assert first.token_ids != other.token_ids


def test_runs_without_a_seed_differ(engine: TorchEngine):
    first, other = generate(engine, *(Generate(max_tokens=40, logprobs=True) for _ in range(2)))
    assert first.token_ids != other.token_ids


def test_tiny_temperature_equals_temperature_zero(engine: TorchEngine):
    tiny = Generate(prompt="a", max_tokens=10, temperature=1e-300, logprobs=True)
    assert generate(engine, tiny)[0].token_ids == generate(engine, greedy("a", 10))[0].token_ids


def test_generation_reaches_the_last_position_of_the_context(engine: TorchEngine):
    prompt = "x" * (CONTEXT - 9)
    alone = generate_one(engine, prompt=prompt, max_tokens=9, temperature=0.0, logprobs=True)
    assert (len(alone.token_ids), alone.finish_reason, alone.prompt_tokens) == (9, "length", CONTEXT - 9)


def test_reused_slot_gives_the_same_result_as_a_fresh_slot(start: Start, random_checkpoint: Checkpoint):
    engine = start(random_checkpoint, slots=2)
    fresh = generate(engine, greedy(PROMPTS[0], 20, top_logprobs=3))[0]
    generate(engine, *(Generate(prompt="z" * 90, max_tokens=30, seed=i) for i in range(4)))
    assert_equal_up_to_rounding(fresh, generate(engine, greedy(PROMPTS[0], 20, top_logprobs=3))[0])


def test_partly_read_prompt_is_not_affected_by_decoding_slots(start: Start, random_checkpoint: Checkpoint):
    """A decoding step also writes cache entries for idle slots, including a slot that is still reading its prompt."""
    engine = start(random_checkpoint, slots=3, step_tokens=8)
    long = greedy("import re\n" * 10, 8, top_logprobs=4)
    expected = generate(engine, long)[0]
    short = [Generate(prompt="ab", max_tokens=40, seed=i) for i in range(2)]

    async def long_in_the_middle() -> Output:
        before = engine.generate(short[0])
        await anext(before)
        middle = asyncio.create_task(collect(engine, long))
        after = asyncio.create_task(collect(engine, short[1]))
        async for _ in before:
            pass
        await after
        return await middle

    assert_equal_up_to_rounding(expected, asyncio.run(long_in_the_middle()))


def test_messages_are_rendered_by_the_chat_template(start: Start, tmp_path: Path):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    engine = start(random_llama(tmp_path, chat_template=template))
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    rendered = generate_one(engine, messages=turns, max_tokens=12, temperature=0.0, logprobs=True)
    same = generate(engine, greedy("[user]hi[assistant]yo>", 12))[0]
    assert (rendered.token_ids, rendered.prompt_tokens) == (same.token_ids, same.prompt_tokens)


@contextlib.contextmanager
def engine_generating(start: Start, folder: Path, text: str):
    """Yield an engine that generates `text` byte by byte after the prompt "a"; no byte may occur twice in `text`."""
    tokens = ["a", *byte_level_tokens(text.encode())]
    links = dict(zip(tokens, [*tokens[1:], "<|end|>"], strict=True))
    crafted_checkpoint(
        folder, byte_alphabet(), {last: {following: 50.0} for last, following in links.items()}
    )
    yield start(folder)


def test_end_token_ends_the_text_without_adding_to_it(start: Start, tmp_path: Path):
    with engine_generating(start, tmp_path, "bc") as engine:
        delta = generate(engine, greedy("a", 20, token_text=True))[0]
    assert (delta.text, delta.finish_reason) == (["b", "c", ""], "stop")
    assert (delta.token_ids[-1], delta.token_text) == (0, ["b", "c", "<|end|>"])


def test_end_token_that_is_not_a_special_token_adds_nothing_to_the_text(start: Start, tmp_path: Path):
    crafted_checkpoint(tmp_path, [*"abcdefghijklmno"], {"a": {"b": 9.0}, "b": {"c": 9.0}})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 3]}')
    checkpoint = load(tmp_path, device="cpu")
    delta = generate(start(checkpoint), greedy("a", 20, token_text=True))[0]
    assert (delta.text, delta.finish_reason, delta.token_text) == (["b", ""], "stop", ["b", "c"])
    assert checkpoint.vocabulary.special == {0, 3}


def test_split_characters_are_never_shown_as_replacement_characters(start: Start, tmp_path: Path):
    with engine_generating(start, tmp_path, "é🙂!") as engine:
        whole = generate(engine, greedy("a", 20))[0]
        cut = generate(engine, greedy("a", 5))[0]
    assert whole.text == ["", "é", "", "", "", "🙂", "!", ""]
    assert (cut.text, cut.finish_reason) == (["", "é", "", "", ""], "length")


def test_stop_string_over_several_tokens_ends_the_text_before_it(start: Start, tmp_path: Path):
    with engine_generating(start, tmp_path, "bcdefgh") as engine:
        stopped = generate(engine, greedy("a", 20, stop=["ef", "xyz"]))[0]
        one = generate(engine, greedy("a", 20, stop="d"))[0]
        false_alarm = generate(engine, greedy("a", 20, stop="efx"))[0]
        held_at_the_end = generate(engine, greedy("a", 4, stop="ef"))[0]
    assert ("".join(stopped.text), stopped.finish_reason, len(stopped.token_ids)) == ("bcd", "stop", 5)
    assert ("".join(one.text), one.finish_reason) == ("bc", "stop")
    assert ("".join(false_alarm.text), false_alarm.finish_reason) == ("bcdefgh", "stop")
    assert ("".join(held_at_the_end.text), held_at_the_end.finish_reason) == ("bcde", "length")


def test_second_turn_of_a_conversation_reuses_the_first_and_has_the_same_tokens(
    start: Start, random_checkpoint: Checkpoint
):
    engine = start(random_checkpoint)
    first = "x, y = f(a)\n" * 4
    answer = "".join(generate_one(engine, prompt=first, max_tokens=8, temperature=0.0).text)
    read = asyncio.run(engine.stats()).prompt_tokens
    second = greedy(first + answer + " next?", 20)
    again = generate(engine, second)[0]
    assert asyncio.run(engine.stats()).prompt_tokens - read < len(first) / 2
    assert again.token_ids == generate(start(random_checkpoint), second)[0].token_ids
    assert again.prompt_tokens > len(first)
