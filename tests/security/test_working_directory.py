"""Files in the working directory are executed or read only if they were named. Links are not followed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidewire_server.commands import load_target
from tidewire_server.serving.port_file import PortFileError, port_file

SHADOWED = (
    "uvloop",
    "httptools",
    "orjson",
    "starlette",
    "typing_extensions",
    "sitecustomize",
    "conftest",
    "mine",
)


@pytest.mark.heavy
def test_tidewire_serve_ignores_files_in_a_hostile_working_directory(tmp_path):
    hostile, trusted = tmp_path / "hostile", tmp_path / "trusted"
    hostile.mkdir()
    trusted.mkdir()
    for name in SHADOWED:
        (hostile / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    for name in ("tidewire.toml", ".env", "uvicorn.toml"):
        (hostile / name).write_text("TIDEWIRE_PORT=1\nport = 1\n")
    information = hostile / "evil-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: evil\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[tidewire.commands]\nserve = mine:x\n")
    (trusted / "mine.py").write_text("from tidewire_server import Server\nserver = Server()\n")
    done = subprocess.run(
        [
            Path(sys.executable).with_name("tidewire"),
            "serve",
            f"{trusted / 'mine.py'}:server",
            "--show-config",
        ],
        cwd=hostile,
        env={
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIDEWIRE"))
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "8000" in next(line for line in done.stdout.splitlines() if line.startswith("port "))
    assert not (tmp_path / "executed").exists()


def test_working_directory_is_searched_only_if_it_contains_the_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", before := sys.path.copy())
    load_target._load_module("tidewire_server")
    assert sys.path == before
    (tmp_path / "named_module.py").write_text("")
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    load_target._load_module("named_module")
    assert sys.path[0] == str(tmp_path)


def test_port_file_does_not_follow_links(tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / "port").symlink_to(target)
    (tmp_path / f"port.{os.getpid()}").symlink_to(target)
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".port.guessed").symlink_to(target)
    with pytest.raises(PortFileError, match="File exists"), port_file(tmp_path / "port", 1):
        pass
    monkeypatch.undo()
    with port_file(tmp_path / "port", 80) as publish:
        publish()
    assert (tmp_path / "port").read_text() == "80\n"
    assert not (tmp_path / "port").is_symlink()
    assert target.read_text() == "untouched"


def test_port_file_of_a_killed_server_is_replaced(tmp_path):
    for number in (1, 2):
        with port_file(tmp_path / "port", number) as publish:
            publish()
    assert (tmp_path / "port").read_text() == "2\n"
    assert [each.name for each in tmp_path.iterdir()] == ["port"]


def test_port_file_that_cannot_be_replaced_is_an_error(tmp_path):
    path = tmp_path / "port"
    with port_file(path, 1) as publish:
        path.mkdir()
        with pytest.raises(PortFileError, match="cannot write the port file"):
            publish()
    assert [each.name for each in tmp_path.iterdir()] == ["port"]
