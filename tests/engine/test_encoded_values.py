"""JSON of the log-probabilities of one step, made for all requests of the step at once."""

import json

import numpy as np

from support.line_counts import line_count
from tidewire_server.generation.torch_engine.sampling.score_columns import Scoring, values_of

WIDTH, ASKED = 64, 3


def step_of(scorings: list[Scoring]) -> list[np.ndarray]:
    """Return the arrays of a step: log-probabilities, ids, ranks, and the tokens above and at the level of the cut."""
    draw = np.random.default_rng(1)
    rows = len(scorings)
    exact = -draw.exponential(3, (rows, 1 + WIDTH + ASKED)).astype(np.float32)
    exact[:, :3] = -1e-7, -np.inf, -3
    ids = draw.integers(0, 2048, (rows, WIDTH), dtype=np.int32)
    return [
        exact,
        ids,
        np.arange(1, rows + 1, dtype=np.int32),
        np.tile(np.array([3, 4], np.int32), (rows, 1)),
    ]


def test_json_of_a_request_does_not_depend_on_the_other_requests_of_the_step():
    scorings = [
        Scoring(),
        Scoring(top=5),
        Scoring(top=64, decimals=9, ranks=True),
        Scoring(top=5, decimals=0, token_ids=(7, 8, 9)),
        Scoring(top=5, ties="count", token_ids=(7,)),
        Scoring(top=5, ties="all"),
        Scoring(ties="count"),
    ]
    arrays = step_of(scorings)
    values = values_of(arrays, scorings)
    for row, (scoring, found) in enumerate(zip(scorings, values, strict=True)):
        assert found == values_of([each[row : row + 1] for each in arrays], [scoring])[0]
        n = 7 if scoring.ties == "all" else scoring.top
        parsed = {name: json.loads(value) for name, value in found.items()}
        assert parsed["top_ids"] == arrays[1][row, :n].tolist()
        assert parsed["ranks"] == row + 1
        scored = parsed.get("scored_logprobs", [])
        assert len(scored) == len(scoring.token_ids)
        asked = arrays[0][row, 1 + WIDTH : 1 + WIDTH + len(scored)]
        exact = [*arrays[0][row, : 1 + n].tolist(), *asked.tolist()]
        for number, value in zip([parsed["logprobs"], *parsed["top_logprobs"], *scored], exact, strict=True):
            assert (number is None) == (value == -np.inf)
            if number is not None:
                assert abs(number - value) <= 0.500001 * 10**-scoring.decimals
                assert number == round(number, scoring.decimals)
        assert b"-0.0" not in found["logprobs"].split(b"000")
    assert [json.loads(each["tie_counts"]) for each in values[4:]] == [2, 0, 0]


def test_more_candidates_execute_no_more_python():
    def lines(n: int) -> int:
        scorings = [Scoring(top=n, max_top=n, ties="all")] * 8
        exact, ids, ranks, counts = step_of(scorings)
        columns = [exact[:, : 1 + n], ids[:, :n], ranks, counts]
        return line_count(lambda: values_of(columns, scorings))

    lines(5)  # the first call imports parts of numpy
    assert lines(64) == lines(5)
