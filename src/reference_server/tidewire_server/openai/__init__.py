"""OpenAI surface: the endpoint `generate` under `/openai/v1`, for scripts that use a client of OpenAI's API.

Each request becomes a job of `generate`, so that the same queue, limits and log apply. `request_members` and `job_inputs`
translate the request. `completion_objects` and `response_events` translate the state of the job into the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidewire_server.server import Server


def add_openai(server: Server) -> None:
    """Add the OpenAI surface to a server that has an endpoint `generate`. `add_generate` calls this function."""
    from tidewire_server.openai.openai_routes import openai_routes  # noqa: PLC0415 - `--help` does not need the server

    server.add_routes(lambda app: openai_routes(app, server.endpoints))
