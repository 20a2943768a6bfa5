"""Startup banner of the server."""

from pathlib import Path

import pytest

from tidewire_server import Server
from tidewire_server.commands.banner import startup_banner
from tidewire_server.generation.upstream import add_upstream

URL = "http://127.0.0.1:8000"


def make_server(**settings) -> Server:
    server = Server(**settings)

    @server.endpoint(concurrency_group="gpu", concurrency_limit=2)
    def draw(prompt: str) -> str:
        """Draw an image."""
        return prompt

    @server.endpoint(concurrency_group="gpu", batch=True, max_batch_size=8)
    def caption(image: list[str]) -> list[str]:
        """Describe an image."""
        return image

    @server.endpoint(concurrency_limit=None)
    def count() -> int:
        return 1

    return server


def test_each_endpoint_shows_its_concurrency_and_its_group():
    lines = startup_banner(make_server(), URL).splitlines()
    assert lines[3:6] == [
        "    draw     2 at a time, group gpu                Draw an image.",
        "    caption  2 at a time, batches of 8, group gpu  Describe an image.",
        "    count    any number at a time",
    ]
    assert "  group        gpu: draw and caption share 2 at a time" in lines


def test_endpoint_shows_its_individual_limits():
    server = Server()
    server.endpoint(lambda: 1, name="short", max_queue_size=2, time_limit=1.5)
    assert startup_banner(server, URL).splitlines()[3] == "    short  1 at a time, queue of 2, 1.5 s each"


def test_example_command_includes_a_token_placeholder_without_the_token():
    shown = startup_banner(make_server(tokens=["ann:sesame"]), URL)
    assert f"tidewire call {URL} draw prompt=TEXT --token-file FILE" in shown
    assert f"curl --header 'Authorization: Bearer TOKEN' {URL}/v1" in shown
    assert "sesame" not in shown


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, ["--token-file", "--cors-origin", "--log"]),
        (
            {"merge_window": 0, "log": "sqlite:///x.db", "cors_origins": ["*"]},
            ["--token-file", "--merge-window"],
        ),
        (
            {"tokens": ["a:b"], "cors_origins": ["*"]},
            ["--operator-token-file", "--log", "stream_token_secret"],
        ),
        (
            {
                "tokens": ["a:b"],
                "operator_tokens": ["c"],
                "cors_origins": ["*"],
                "log": "sqlite:///x.db",
                "stream_token_secret": "s" * 32,
            },
            [],
        ),
        (
            {
                "tokens": ["a:b"],
                "operator_tokens": ["c"],
                "cors_origins": ["*"],
                "log": "postgresql://db.example/tidewire",
            },
            [],
        ),
    ],
)
def test_disabled_features_are_listed_with_their_flags(settings, flags):
    (off,) = [
        line
        for line in startup_banner(make_server(**settings), URL).splitlines()
        if line.startswith("  off ")
    ]
    assert [part.rpartition("(")[2].rstrip(")") for part in off.split(", ") if "(" in part] == flags
    assert ("nothing" in off) is not bool(flags)


def test_example_command_calls_the_first_endpoint_with_its_example_or_with_placeholders():
    def example_command(**options) -> str:
        server = Server()

        @server.endpoint(**options)
        def draw(prompt: str, size: int, tags: list[str], seed: int = 0) -> str:
            return prompt

        server.endpoint(lambda n=1: n, name="train")
        (line,) = [line for line in startup_banner(server, URL).splitlines() if line.startswith("  try ")]
        return line.removeprefix("  try").strip()

    assert example_command() == f"""tidewire call {URL} draw prompt=TEXT size=1 'tags=["TEXT"]'"""
    example = {"prompt": "the sea", "size": 2, "tags": []}
    assert (
        example_command(examples=[example]) == f"tidewire call {URL} draw 'prompt=the sea' size=2 'tags=[]'"
    )
    two_lines = example | {"prompt": "a\nb"}
    assert example_command(examples=[two_lines]) == (
        f"""tidewire call {URL} draw --input '{{"prompt": "a\\nb", "size": 2, "tags": []}}'"""
    )
    assert startup_banner(Server(), URL).endswith(f"tidewire describe {URL}\n               curl {URL}/v1\n")


def test_banner_names_the_base_url_for_clients_of_openai_only_with_the_surface():
    server = make_server()
    server.endpoint(lambda n=1: n, name="generate")
    assert "openai" not in startup_banner(server, URL)
    server = make_server()
    add_upstream(server, "http://127.0.0.1:1/v1")
    line = f"  openai       {URL}/openai/v1 is the base_url for clients of OpenAI's API"
    assert line in startup_banner(server, URL).splitlines()
    assert line not in startup_banner(server, URL, Path("/run/tidewire.sock"))


def test_banner_warns_that_everyone_has_access():
    def warned(**settings) -> bool:
        return "  WARNING      authentication is off" in startup_banner(Server(**settings), URL)

    assert warned(allow_anonymous=True)
    assert not warned()
    assert not warned(allow_anonymous=True, tokens=["a:b"])


def test_banner_shows_the_connections_that_fit_into_the_limit_of_open_files(monkeypatch):
    resource = pytest.importorskip("resource")
    for soft, shown in ((1024, 924), (5099, 4999), (5100, 5000), (resource.RLIM_INFINITY, 5000), (50, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert f"connections {shown}, streams of one caller 1000" in startup_banner(Server(), URL)
