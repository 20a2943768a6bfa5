"""The conversations that the specification shows, held with the reference server over raw sockets."""

from typing import Any

import pytest

from conformance.transcript_notation import Remark, read
from conformance.transcript_scenes import SCENES, TRANSCRIPTS, Scene, playing
from conformance.transcripts import CUES


def transcript(name: str) -> Any:
    reason = TRANSCRIPTS[name].tags.get("pending", "").replace("-", " ")
    return pytest.param(name, marks=[pytest.mark.skip(f"{name} is pending: {reason}")] if reason else [])


@pytest.mark.parametrize("name", [transcript(name) for name in TRANSCRIPTS])
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
