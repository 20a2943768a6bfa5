"""The transcripts of the specification, played against the reference server over raw sockets."""

import contextlib
import json
from collections.abc import Iterator
from signal import SIGTERM
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from scenarios.transcripts.notation import Remark, read
from scenarios.transcripts.player import CUES, Player
from scenarios.transcripts.scenes import SCENES, TRANSCRIPTS
from scenarios.transcripts.stage import WHOLE_RUN_CHECKS, Scene, playing
from support import serve_command
from support.server_address import address_of
from support.spec_document import SPEC, extract

EVERY = "every transcript: "
PLAYED = [name for name, fence in TRANSCRIPTS.items() if "pending" not in fence.tags]


@pytest.mark.parametrize("name", PLAYED)
def test_the_server_follows_the_transcript(name):
    with playing(SCENES.get(name, Scene())) as player:
        player.play(TRANSCRIPTS[name].text)


@pytest.mark.parametrize("name", ["endpoints-of-several-kinds", "generate", "without-capabilities"])
def test_endpoint_descriptions_are_correct(name):
    with playing(SCENES[name]) as player:
        for one in json_of(player, "GET /v1")["endpoints"]:
            found = json_of(player, f"GET {one['href']}")
            for schema in (found["input_schema"], found["value_schema"]):
                Draft202012Validator.check_schema(schema)
                assert all(link.startswith("#") for link in references(schema)), "nothing has to be fetched"
            for example in [*found.get("examples", ()), *([{}] if one.get("defaults") else [])]:
                assert not list(Draft202012Validator(found["input_schema"]).iter_errors(example))
                job = json_of(player, f"POST {one['href']}/jobs", {"input": example}, status=201)
                player.ask(f"POST /v1/jobs/{job['id']}/cancel").close()


def json_of(player: Player, target: str, body: object = None, *, status: int = 200) -> Any:
    with contextlib.closing(player.ask(target, body)) as answer:
        assert answer.exchange.status == status
        return json.loads(answer.whole())


def references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (schema[name] for name in ("$ref", "$dynamicRef") if isinstance(schema.get(name), str))
    if isinstance(schema, dict | list):
        for child in schema.values() if isinstance(schema, dict) else schema:
            yield from references(child)


def test_the_readme_lists_the_requirements_of_the_whole_run_checks():
    judged = {check.run.__name__.replace("_", " "): check.requirements for check in WHOLE_RUN_CHECKS}
    listed = extract.reasons((SPEC / "README.md").read_text(encoding="utf-8"), extract.WATCHED_HEADING)
    rows = [(name, by.removeprefix(EVERY)) for name, by in listed.items() if by.startswith(EVERY)]
    assert rows
    assert [row for row in rows if row[0] not in judged[row[1]]] == []


def test_pending_transcripts_have_a_reason():
    assert [name for name, fence in TRANSCRIPTS.items() if fence.tags.get("pending") == ""] == []


def test_scenes_and_cues_refer_to_existing_transcripts_and_remarks():
    assert SCENES.keys() <= TRANSCRIPTS.keys()
    for name, scene in SCENES.items():
        remarks = {step.text for step in read(TRANSCRIPTS[name].text) if isinstance(step, Remark)}
        assert scene.cues.keys() <= remarks, name
    everywhere = {
        step.text for fence in TRANSCRIPTS.values() for step in read(fence.text) if isinstance(step, Remark)
    }
    assert CUES.keys() <= everywhere


def test_a_server_process_with_script_follows_a_transcript(tmp_path):
    (tmp_path / "mine.py").write_text("from tidewire_server import Server\nserver = Server()\n")
    with (
        serve_command.served(tmp_path, "mine.py:server", "--script", "--merge-window", "0") as (
            process,
            peer,
        ),
        Player(address_of(peer.url)) as player,
    ):
        player.play(TRANSCRIPTS["plain-stream"].text)
        process.send_signal(SIGTERM)
        assert process.wait() == 0
