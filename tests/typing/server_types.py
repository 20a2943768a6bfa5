"""Correct calls of the server's API: mypy and pyright, both strict, must not report anything."""

from typing import Any, assert_type

from tidewire_server import Server


def value_of_a_call(server: Server) -> None:
    assert_type(server.call("generate", prompt="x"), Any)
    assert_type(server.call("generate", prompt="x")["text"], Any)
