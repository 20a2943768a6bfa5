"""The option `workers=ray_workers(…)`: limits, signatures of classes, and defaults. None of this imports Ray."""

from collections.abc import AsyncIterator, Generator

import pytest

from tidewire_server import Append, Context, Server, ray_workers


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("max_in_flight", 1, 65_536),
        ("start_timeout", 0.001, 86_400.0),
        ("replace_timeout", 0.001, 86_400.0),
    ],
)
def test_limit_is_accepted_up_to_its_bounds_and_refused_beyond(name, least, most):
    for value in (least, most):
        assert getattr(ray_workers(1, **{name: value}), name) == value
    for value in (0, most + 1, "1", True):
        with pytest.raises(ValueError, match=name):
            ray_workers(1, **{name: value})


def test_defaults_of_the_limits():
    workers = ray_workers(4, num_gpus=1)
    assert (workers.max_in_flight, workers.start_timeout, workers.replace_timeout) == (64, 300.0, 600.0)
    assert workers.actor_options == {"num_gpus": 1}


@pytest.mark.parametrize("count", [0, -1, 1.0, 10_001])
def test_number_of_actors_must_be_a_positive_integer(count):
    with pytest.raises(ValueError, match="count"):
        ray_workers(count)


def test_options_that_the_pool_sets_are_refused():
    with pytest.raises(ValueError, match="max_restarts, name"):
        ray_workers(1, name="a", max_restarts=3)


def test_class_has_the_schemas_of_its_call_method_and_one_call_per_actor():
    server = Server()

    class Embed:
        """A vector for each text."""

        def __init__(self):
            raise AssertionError("the server creates no instance")

        def __call__(self, texts: list[str], ctx: Context) -> tuple[list[int], list[str]]:
            return [], []

    assert server.endpoint(batch=True, workers=ray_workers(3))(Embed) is Embed
    endpoint = server.endpoints["Embed"]
    assert list(endpoint.input.schema["properties"]) == ["texts"]
    assert endpoint.summary == "A vector for each text."
    assert (endpoint.concurrency_limit, endpoint.is_async, endpoint.is_generator) == (3, True, False)


def test_concurrency_limit_of_the_endpoint_takes_precedence():
    server = Server()

    @server.endpoint(batch=True, workers=ray_workers(3), concurrency_limit=2)
    def echo(words: list[str]) -> list[str]:
        return words

    assert server.concurrency_limit_of("echo") == 2


def test_class_without_call_method_and_endpoint_without_batch_are_refused():
    server = Server()
    with pytest.raises(TypeError, match="no method __call__"):
        server.endpoint(batch=True, workers=ray_workers(1))(type("Model", (), {}))
    with pytest.raises(ValueError, match="workers: these options require batch=True"):
        server.endpoint(name="f", workers=ray_workers(1))(lambda word: word)
    with pytest.raises(TypeError, match="is a class"):
        server.endpoint(batch=True)(type("Model", (), {}))


def test_async_functions_and_late_joiners_are_refused_with_the_change_to_make():
    server = Server()
    with pytest.raises(TypeError, match="write `def` instead of `async def`"):

        @server.endpoint(batch=True, workers=ray_workers(1))
        async def embed(words: list[str]) -> list[str]:
            return words

    with pytest.raises(TypeError, match="write `def` instead of `async def`"):

        @server.endpoint(batch=True, workers=ray_workers(1))
        class Spell:
            async def __call__(self, words: list[str]) -> AsyncIterator[dict[int, Append[str]]]:
                yield {}

    with pytest.raises(TypeError, match="annotate it Iterator"):

        @server.endpoint(batch=True, workers=ray_workers(1))
        def slots(words: list[str]) -> Generator[dict[int, Append[str]], dict[int, str], None]:
            yield {}

    assert server.endpoints == {}
