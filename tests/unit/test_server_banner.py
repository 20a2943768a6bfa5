"""What is shown at the start."""

import pytest

from tidewire_server import Server
from tidewire_server.process.banner import startup_banner

URL = "http://127.0.0.1:8000"


def make_server(**settings) -> Server:
    server = Server(**settings)

    @server.endpoint(concurrency_group="gpu", concurrency_limit=2)
    def draw(prompt: str) -> str:
        """Draw."""
        return prompt

    @server.endpoint(concurrency_group="gpu", batch=True, max_batch_size=8)
    def caption(image: list[str]) -> list[str]:
        """Say what is there."""
        return image

    @server.endpoint(concurrency_limit=None)
    def count() -> int:
        return 1

    return server


def test_each_endpoint_says_how_many_run_and_with_which_others_it_shares():
    lines = startup_banner(make_server(), URL).splitlines()
    assert lines[3:6] == [
        "    draw     2 at a time, group gpu                Draw.",
        "    caption  2 at a time, batches of 8, group gpu  Say what is there.",
        "    count    any number at a time",
    ]
    assert "  group        gpu: draw and caption share 2 at a time" in lines


def test_an_endpoint_that_has_limits_of_its_own_shows_them():
    server = Server()
    server.endpoint(lambda: 1, name="short", max_queue_size=2, time_limit=1.5)
    assert startup_banner(server, URL).splitlines()[3] == "    short  1 at a time, queue of 2, 1.5 s each"


def test_what_to_try_names_the_token_that_it_needs_and_shows_none():
    shown = startup_banner(make_server(tokens=["ann:sesame"]), URL)
    assert f"tidewire call {URL} count --header 'Authorization: Bearer TOKEN'" in shown
    assert f"curl --header 'Authorization: Bearer TOKEN' {URL}/v1" in shown
    assert "sesame" not in shown


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, ["--token", "--cors-origin", "--log"]),
        ({"merge_window": 0, "log": "sqlite:///x.db", "cors_origins": ["*"]}, ["--token", "--merge-window"]),
        ({"tokens": ["a:b"], "cors_origins": ["*"]}, ["--log", "--stream-token-secret"]),
        (
            {
                "tokens": ["a:b"],
                "cors_origins": ["*"],
                "log": "sqlite:///x.db",
                "stream_token_secret": "s" * 32,
            },
            [],
        ),
    ],
)
def test_what_is_off_is_told_with_the_flag_that_turns_it_on(settings, flags):
    (off,) = [
        line
        for line in startup_banner(make_server(**settings), URL).splitlines()
        if line.startswith("  off ")
    ]
    assert [part.rpartition("(")[2].rstrip(")") for part in off.split(", ") if "(" in part] == flags
    assert ("nothing" in off) is not bool(flags)


def test_what_to_try_works_as_it_stands():
    def tried(*, without: str = "", **options) -> str:
        server = Server()

        @server.endpoint(**options)
        def draw(prompt: str) -> str:
            return prompt

        if not without:
            server.endpoint(lambda n=1: n, name="count")
        (line,) = [line for line in startup_banner(server, URL).splitlines() if line.startswith("  try ")]
        return line.removeprefix("  try").strip()

    assert tried() == f"tidewire call {URL} count"
    assert tried(without="defaults") == f"tidewire describe {URL} draw"
    assert (
        tried(examples=[{"prompt": "the sea"}])
        == f"""tidewire call {URL} draw --input '{{"prompt": "the sea"}}'"""
    )
    assert startup_banner(Server(), URL).endswith(f"tidewire describe {URL}\n               curl {URL}/v1\n")
