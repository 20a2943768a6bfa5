"""Adapter for the EventSource of Chromium, on a page that this program serves.

The page polls the program for commands, and posts reports to it. `clients.examples.chromium_client` provides the server
and starts the browser.
"""

import json
from pathlib import Path

from tidewire_conformance.clients.examples import chromium_client
from tidewire_conformance.clients.scenarios.event_stream_scenarios import load_event_stream_scenarios


def page() -> str:
    """Return the page, with listeners for all types of events that the scenarios expect."""
    types = {
        event["type"]
        for scenario in load_event_stream_scenarios()
        for event in scenario.expect["events"]
        if "type" in event
    }
    text = Path(__file__).with_name("chromium_eventsource.html").read_text(encoding="utf-8")
    return text.replace("TYPES = []", f"TYPES = {json.dumps(sorted(types | {'message'}))}")


if __name__ == "__main__":
    chromium_client.main(page(), "EventSource of Chromium", ["types", "ids", "reconnect"])
