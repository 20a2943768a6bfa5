"""JSON Schemas for structured output: the sizes of public ones against the limits, and what the most expensive ones cost.

`python bench/schemas.py FOLDER` reads all files `*.json` below a folder, which is not part of this repository. For each limit
of `SchemaLimits`, it prints the sizes of the schemas of at most 8 kB that the library llguidance can compile without any
limits, and how many of them the limit refuses. The documentation used the folder `data` of the repository
guidance-ai/jsonschemabench on GitHub.

`python bench/schemas.py` measures what the schemas of the fuzzer cost that are within the limits: the CPU time to compile
them, the CPU time of a mask, and memory. It does so with the vocabulary of the bundled model, and with one of 128,000 tokens
made from words of this repository. `--vocabulary FILE` adds a published one, in the format of mistral-common's `tekken_*.json`.

`python bench/schemas.py --attack SECONDS` runs a server with the bundled model, one caller that sends the schemas of the
fuzzer with six concurrent requests, and another caller whose tokens per second it counts in windows of 20 seconds.

All write their results to bench/results, and `--write` writes them to docs/explanation/structured-output.md.
"""

import argparse
import base64
import itertools
import json
import random
import re
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher
from measured import save

from tidewire_server.default_model import default_model
from tidewire_server.generation.check_schema_limits import check_schema
from tidewire_server.generation.engine_interface import InputError
from tidewire_server.generation.schema_limits import (
    DEFAULT_LIMITS,
    LIMIT_DESCRIPTIONS,
    LimitCounts,
    SchemaLimits,
)
from tidewire_server.generation.torch_engine.models.load_checkpoint import load
from tidewire_server.generation.torch_engine.request_reader import COMPILE_STACK_BYTES
from tidewire_server.generation.torch_engine.sampling.structured_output import LAYOUT, Grammars
from tidewire_server.generation.vocabulary import Vocabulary

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/explanation/structured-output.md"
UNLIMITED = SchemaLimits(**{each.name: 2**62 for each in fields(SchemaLimits)})
SECONDS = 120.0
"""Time for the fuzzed schemas of each vocabulary."""
STEPS = 60
LARGE = 128_000


# ---- public schemas ----------------------------------------------------------------------------------------------------


def public(folder: Path) -> dict[str, Any]:
    grammars = bundled()[0]
    files, sizes, refused, seconds = 0, list[Counter[str]](), Counter[str](), list[float]()
    kept = uncompiled = 0
    for file in sorted(folder.rglob("*.json")):
        try:
            schema = json.loads(file.read_bytes())
        except ValueError:
            continue
        files += 1
        if (
            not isinstance(schema, dict)
            or len(json.dumps(schema, separators=(",", ":"))) > DEFAULT_LIMITS.max_schema_bytes
        ):
            continue
        text = json.dumps(schema)
        if LLMatcher(
            grammars._tokens, LLMatcher.grammar_from_json_schema(text, overrides=LAYOUT), log_level=0
        ).is_error():
            uncompiled += 1
            continue
        kept += 1
        counts = LimitCounts(UNLIMITED)
        try:
            check_schema(schema, counts)
        except InputError as error:
            reasons = {
                "must not": "an identifier next to a `$ref`",
                "has the": "a reference with another syntax",
            }
            refused[
                next(
                    (text for key, text in reasons.items() if key in str(error)), "a recursion that is merged"
                )
            ] += 1
            continue
        sizes.append(counts.largest)
        begun = time.thread_time()
        try:
            grammars.compile(schema)
        except InputError as error:
            found = re.search(r"the limit (\w+)", str(error))
            refused[found[1] if found else "the library with its limits"] += 1
        seconds.append(time.thread_time() - begun)
    rows = {}
    for name in (each.name for each in fields(SchemaLimits)):
        ordered = sorted(each[name] for each in sizes)
        rows[name] = {
            "limit": getattr(DEFAULT_LIMITS, name),
            "p50": ordered[len(ordered) // 2],
            "p99": ordered[int(len(ordered) * 0.99)],
            "max": ordered[-1],
            "refused": refused.pop(name, 0),
        }
    return {
        "files": files,
        "schemas": kept,
        "not_supported": uncompiled,
        "rows": rows,
        "others": dict(refused),
        "refused": sum(refused.values()) + sum(row["refused"] for row in rows.values()),
        "compile_ms": {
            "p50": percentile(seconds, 0.5),
            "p99": percentile(seconds, 0.99),
            "max": percentile(seconds, 1),
        },
    }


# ---- fuzzed schemas ----------------------------------------------------------------------------------------------------


def fuzzed(seconds: float, published_file: Path | None) -> list[dict[str, Any]]:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from support.hostile_schemas import hostile_schema

    vocabularies = {"bundled": bundled, "made from words": large}
    if published_file is not None:
        vocabularies[f"`{published_file.name}`"] = partial(published, published_file)
    return [measure(name, *read(), hostile_schema, seconds) for name, read in vocabularies.items()]


def measure(
    name: str, grammars: Grammars, size: int, ends: Any, schema_of: Any, seconds: float
) -> dict[str, Any]:
    end, seed = time.monotonic() + seconds, 0
    compiling, masks, means, outcomes = list[float](), list[float](), list[float](), Counter[str]()
    before = peak()
    while time.monotonic() < end:
        seed += 1
        schema, rng = schema_of(seed), random.Random(seed)
        begun = time.thread_time()
        try:
            grammar = grammars.compile(schema)
        except InputError as error:
            outcomes["refused by a limit" if "exceeds the limit" in str(error) else "refused"] += 1
            compiling.append(time.thread_time() - begun)
            continue
        compiling.append(time.thread_time() - begun)
        token, own = -1, list[float]()
        while len(own) < STEPS and token not in ends and grammar.error is None:
            begun = time.thread_time()
            allowed = np.flatnonzero(grammar.allowed())
            if grammar.error is None:
                token = int(rng.choice([each for each in allowed[:1000] if each not in ends] or [*allowed]))
                grammar.advance(token)
            own.append(time.thread_time() - begun)
        outcomes["ended by a limit" if grammar.error else "followed"] += 1
        masks += own
        means.append(sum(own) / len(own))
    return {
        "vocabulary": name,
        "tokens": size,
        "schemas": seed,
        "outcomes": dict(outcomes),
        "compile_ms": {"p99": percentile(compiling, 0.99), "max": percentile(compiling, 1)},
        "mask_ms": {"p99": percentile(masks, 0.99), "max": percentile(masks, 1)},
        "mean_mask_ms": {"p99": percentile(means, 0.99), "max": percentile(means, 1)},
        "peak_growth_mib": (peak() - before) / 2**20,
    }


def attacked(seconds: float) -> dict[str, Any]:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from support.hostile_schemas import hostile_schema
    from support.schema_attack import SchemaAttack

    with tempfile.TemporaryDirectory() as folder, SchemaAttack(Path(folder)) as attack:
        ratios, outcomes = list[float](), Counter[str]()
        for ratio, window in attack.ratios(seconds, 20.0, map(hostile_schema, itertools.count())):
            ratios.append(ratio)
            outcomes += window.outcomes
            print(f"{ratio:.2f}, {window.tokens_per_second:.0f} tokens/s", flush=True)
        grown = attack.peak_bytes - attack.start_bytes
    return {
        "seconds": seconds,
        "windows": len(ratios),
        "lowest": min(ratios),
        "median": statistics.median(ratios),
        "schemas": outcomes.total(),
        "refused": outcomes["422"] + outcomes["400"],
        "grown_mib": grown / 2**20,
    }


def bundled() -> tuple[Grammars, int, Any]:
    c = load(default_model(), device="cpu")
    return (
        Grammars(c.vocabulary, c.vocab_size, c.end_ids, c.tokenizer.backend_tokenizer),
        c.vocab_size,
        c.end_ids,
    )


class LongestTokens:
    """Tokenizer that the grammar does not accept, so that it chooses the longest tokens."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        return type("Encoding", (), {"ids": []})


def large() -> tuple[Grammars, int, Any]:
    """Return a vocabulary of the size of current models: the pieces of this repository's texts, and pairs of them."""
    pieces = Counter[bytes]()
    for file in sorted(HERE.parent.glob("src/**/*.py")) + sorted(HERE.parent.glob("docs/**/*.md")):
        pieces.update(re.findall(rb" ?[A-Za-z]+|[0-9]{1,3}| ?[^A-Za-z0-9\s]{1,4}|\s{1,8}", file.read_bytes()))
    known = dict.fromkeys(
        [b"", *(bytes([i]) for i in range(256)), *(piece for piece, _ in pieces.most_common())]
    )
    words, rng = [*known][257:], random.Random(0)
    while len(known) < LARGE:
        known.setdefault((rng.choice(words) + rng.choice(words))[:16])
    tokens = [*known][:LARGE]
    return Grammars(Vocabulary(tokens, special={0}), LARGE, {0}, LongestTokens()), LARGE, {0}


def published(file: Path) -> tuple[Grammars, int, Any]:
    """Return a published vocabulary, read from a file in the format of mistral-common."""
    content = json.loads(file.read_bytes())
    size, special = (content["config"][key] for key in ("default_vocab_size", "default_num_special_tokens"))
    tokens = [base64.b64decode(token["token_bytes"]) for token in content["vocab"][: size - special]]
    vocabulary = Vocabulary([b""] * special + tokens, special=range(special))
    return Grammars(vocabulary, size, {2}, LongestTokens()), size, {2}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# ---- page --------------------------------------------------------------------------------------------------------------


def replace(name: str, text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, _, rest = page.partition(begin)
    PAGE.write_text(head + begin + text + end + rest.partition(end)[2], encoding="utf-8")


def public_table(found: dict[str, Any]) -> str:
    lines = [
        "| limit | default | half of the schemas | 99 % | largest | refused |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| `{name}` | {row['limit']:,} | {row['p50']:,} | {row['p99']:,} | {row['max']:,} | {row['refused']} |"
            for name, row in found["rows"].items()
        ),
    ]
    others = ", ".join(f"{count} with {reason}" for reason, count in found["others"].items())
    compile_ms = found["compile_ms"]
    return (
        "\n".join(lines)
        + f"\n\nOf {found['files']:,} files, {found['schemas']:,} are schemas of at most 8 kB that the library supports. "
        f"{found['refused']} of them are refused ({others or 'all by a limit of the table'}). Compiling took {compile_ms['p50']:.1f} "
        f"ms for half of them, at most {compile_ms['p99']:.0f} ms for 99 %, and at most {compile_ms['max']:.0f} ms.\n"
    )


def limits_table() -> str:
    lines = [
        "| limit | meaning |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in LIMIT_DESCRIPTIONS.items()),
    ]
    return "\n".join(lines) + "\n"


def cost_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| vocabulary | tokens | schemas | compile, 99 % | compile, longest | mask, 99 % | mask, longest | mean mask of a text, largest | memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row['vocabulary']} | {row['tokens']:,} | {row['schemas']:,} | {row['compile_ms']['p99']:.1f} ms | {row['compile_ms']['max']:.0f} ms "
            f"| {row['mask_ms']['p99']:.2f} ms | {row['mask_ms']['max']:.1f} ms | {row['mean_mask_ms']['max']:.2f} ms "
            f"| {row['peak_growth_mib']:.0f} MiB |"
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def attack_text(found: dict[str, Any]) -> str:
    return (
        f"In {found['seconds'] / 60:.0f} minutes, the attacker sent {found['schemas']:,} schemas, of which {found['refused']:,} were "
        f"refused. In the {found['windows']} windows with the attack, the other caller had {found['lowest']:.2f} to "
        f"{found['median']:.2f} (lowest and median) times its tokens per second of the windows next to them, in which the attacker "
        f"used an ordinary schema. The memory of the server grew by {found['grown_mib']:.0f} MiB.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--vocabulary", type=Path, metavar="FILE")
    parser.add_argument("--attack", type=float, metavar="SECONDS")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.attack is not None:
        result = attacked(args.attack)
        save(HERE / "results/schema_attack.json", result, "llguidance")
        text, name = attack_text(result), "attack"
    elif args.folder is not None:
        found = public(args.folder)
        save(HERE / "results/schemas.json", found, "llguidance")
        text, name = public_table(found), "public schemas"
    else:
        rows = fuzzed(args.seconds, args.vocabulary)
        save(HERE / "results/schema_costs.json", {"rows": rows}, "llguidance")
        text, name = cost_table(rows), "costs"
    print(text)
    if args.write:
        replace(name, text)
        replace("limits", limits_table())


if __name__ == "__main__":
    # The server compiles in a thread with such a stack.
    threading.stack_size(COMPILE_STACK_BYTES)
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
