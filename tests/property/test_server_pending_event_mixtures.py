"""Random appends, rows and replacements on one stream: readers get the written value."""

import json
import random
from typing import Any

import pytest

from support.stream_harness import StreamHarness

KIB = 1024


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 30))]
)
async def test_readers_get_the_written_value_for_any_order_of_writes(seed):
    draw = random.Random(seed)
    job = StreamHarness(
        {"text": "", "ids": [], "other": ""},
        ("/text", "/ids"),
        merge_window=draw.choice((0.0, 1.0)),
        max_event_bytes=draw.choice((KIB, 2**20)),
    )
    expected: dict[str, Any] = {"text": "", "ids": [], "other": ""}
    for step in range(300):
        piece = draw.choice(("a", "né", "🎉", "\n", "", "word " * draw.randrange(40)))
        match draw.randrange(24):
            case 0:
                job.stream.truncate(n := draw.randrange(len(expected["other"]) + 1), at="/other")
                expected["other"] = expected["other"][: len(expected["other"]) - n]
            case 1:
                job.stream.set("/other", piece)
                expected["other"] = piece
            case 2:
                expected["text"] += piece
                expected["ids"] = [*expected["ids"], {"n": step}]
                job.writer.replace(json.loads(json.dumps(expected)))
            case 3:
                assert job.stream.value == expected
            case 4:
                await job.log_writer.commit()
            case 5 | 6:
                job.stream.append([step, [step]], at="/ids")
                expected["ids"] += [step, [step]]
            case 7 | 8 | 9 | 10:
                job.stream.append(piece, at="/other")
                expected["other"] += piece
            case 11:
                job.writer.encoded_rows([(piece, b"%d" % step), ("", b"[-0.5,null]")])
                expected["text"] += piece
                expected["ids"] += [step, [-0.5, None]]
            case 12 | 13 | 14 | 15:
                expected["other"] += piece
                job.writer.replace(expected)
                expected = json.loads(json.dumps(expected))
            case _:
                job.stream.row(piece, [step])
                expected["text"] += piece
                expected["ids"].append([step])
    assert job.stream.value == expected
    assert await job.read() == expected
