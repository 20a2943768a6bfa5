"""Tokens of the client's commands come from a file or from the environment, and not from the command line."""

import pytest
from typer.testing import CliRunner

from tidewire.commands.cli import app
from tidewire.commands.read_arguments import read_headers


@pytest.fixture(autouse=True)
def variable(monkeypatch):
    monkeypatch.delenv("TIDEWIRE_TOKEN", raising=False)
    return lambda value: monkeypatch.setenv("TIDEWIRE_TOKEN", value)


def test_token_is_read_from_a_file(tmp_path, variable):
    variable("sesame")  # The client reads the variable itself, if there are no other credentials.
    assert read_headers(None) == {}
    path = tmp_path / "token"
    path.write_text("open\n")
    assert read_headers(None, path) == {"Authorization": "Bearer open"}


def test_header_takes_precedence_over_the_environment(variable):
    variable("sesame")
    assert read_headers(["authorization: Basic x"]) == {"authorization": "Basic x"}


def test_empty_variable_counts_as_unset(variable):
    variable(" ")
    assert read_headers(["x: y"]) == {"x": "y"}


def test_header_and_file_together_are_refused(tmp_path):
    with pytest.raises(ValueError, match="use one of the two"):
        read_headers(["Authorization: Bearer a"], tmp_path / "token")


@pytest.mark.parametrize("content", [b"", b"a b", b"a\nb", b"ses\xc3\xa9", b"\xff", b"a\r\nX-Evil: 1", None])
def test_invalid_token_is_refused_without_showing_it(content, tmp_path, variable):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^--token-file .*token: ") as refused:
        read_headers(None, path)
    assert "Evil" not in str(refused.value)


@pytest.mark.parametrize("command", ["call", "map", "jobs", "describe", "codegen"])
def test_token_on_the_command_line_is_refused(command):
    ended = CliRunner().invoke(app, [command, "http://127.0.0.1:1", "--token", "sesame"])
    assert ended.exit_code == 2
    assert "--token-file" in ended.output
    assert "sesame" not in ended.output
