"""Scenarios of the profile `sse`, for any client that reads event streams.

The vectors in `spec/vectors/sse/framing.json` become scenarios of the area `sse_framing`. In each of them, the client
reads the same stream twice: as one chunk, and byte by byte. Byte by byte, the server waits after each complete event
until the client has delivered the event. The judge can then see whether the client holds events back.
"""

import functools
import json
from dataclasses import replace
from typing import Any, Final

from tidewire_conformance import specification
from tidewire_conformance.clients.scenarios.scenario import Members, Scenario, load

PREFIX: Final = "TW-SSE-"
AREA: Final = "sse_"
"""Prefix of the area names of these scenarios."""
_NEEDS: Final = {
    "TW-SSE-028": "types",
    "TW-SSE-029": "ids",
    "TW-SSE-030": "ids",
    "TW-SSE-031": "retry",
}
"""Ability that a client needs to be judged by a requirement, if its program must report more than the data of events."""
_OPENINGS: Final[tuple[Members, ...]] = (
    {"do": "open", "chunk": "all"},
    {"do": "open", "chunk": 1, "prompt": True},
)


@functools.cache
def load_event_stream_scenarios() -> tuple[Scenario, ...]:
    """Load all scenarios of the profile `sse`: the vectors, then the files in `spec/scenarios/sse`.

    Raises:
        ScenarioError: A file does not match its schema.
    """
    content = json.loads((specification.folder() / "vectors/sse/framing.json").read_text(encoding="utf-8"))
    found = [scenario for vector in content["vectors"] for scenario in _from_vector(vector)]
    for file in sorted((specification.folder() / "scenarios/sse").glob("*.json")):
        found += [replace(each, area=AREA + each.area) for each in load(file)]
    return tuple(found)


def _from_vector(vector: dict[str, Any]) -> list[Scenario]:
    """Convert a vector to a scenario. The list is empty if the standard does not specify the case of the vector."""
    requirements = tuple(each for each in vector["requirements"] if each.startswith(PREFIX))
    if not requirements:
        return []
    expect = {
        "end": ["closed", "failed"],
        "events": vector["events"],
        "last_event_id": vector["last_event_id"],
        "retry_ms": vector["retry_ms"],
    }
    return [
        Scenario(
            vector["name"],
            f"{vector['rule']} The stream: {vector['shown']}",
            requirements,
            expect,
            frozenset(_NEEDS[each] for each in requirements if each in _NEEDS),
            _OPENINGS,
            {"streams": ({"events": [{"base64": vector["stream"]}]},)},
            area=f"{AREA}framing",
        )
    ]
