"""The conversations that the specification shows, held with the reference server over raw sockets."""

import subprocess
import sys

import pytest

from conformance.transcript_notation import Remark, read
from conformance.transcript_scenes import SCENES, TRANSCRIPTS
from conformance.transcript_stage import Scene, playing
from conformance.transcripts import CUES, Player
from integration.reference_server import eventually

PLAYED = [name for name, fence in TRANSCRIPTS.items() if "pending" not in fence.tags]


@pytest.mark.parametrize("name", PLAYED)
def test_the_server_says_what_the_transcript_shows(name):
    with playing(SCENES.get(name, Scene())) as player:
        player.play(TRANSCRIPTS[name].text)


def test_what_is_pending_says_why():
    assert [name for name, fence in TRANSCRIPTS.items() if fence.tags.get("pending") == ""] == []


def test_scenes_are_of_transcripts_that_exist_and_cues_of_remarks_that_they_hold():
    assert SCENES.keys() <= TRANSCRIPTS.keys()
    for name, scene in SCENES.items():
        remarks = {step.text for step in read(TRANSCRIPTS[name].text) if isinstance(step, Remark)}
        assert scene.cues.keys() <= remarks, name
    everywhere = {
        step.text for fence in TRANSCRIPTS.values() for step in read(fence.text) if isinstance(step, Remark)
    }
    assert CUES.keys() <= everywhere


def test_a_server_process_that_offers_scripts_says_it_too(tmp_path):
    (tmp_path / "mine.py").write_text("from tidewire_server import Server\nserver = Server()\n")
    command = [sys.executable, "-m", "tidewire_server", "mine.py:server", "--script", "--merge-window", "0"]
    command += ["--port", "0", "--port-file", "port"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            eventually((tmp_path / "port").exists, within=20)
            with Player(("127.0.0.1", int((tmp_path / "port").read_text()))) as player:
                player.play(TRANSCRIPTS["plain-stream"].text)
        finally:
            process.terminate()
    assert process.returncode == 0
