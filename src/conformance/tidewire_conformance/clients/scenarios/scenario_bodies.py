"""Default bodies for the responses of a scenario's server.

Each body is valid, unless the scenario overrides one of its members with an invalid value.
"""

from typing import Any

from tidewire_conformance.clients.scenarios.scenario import JOB, Members

_LIMITS = {
    "max_body_bytes": 8388608,
    "max_inputs": 1024,
    "max_jobs_per_principal": 10000,
    "max_streams_per_principal": 1000,
    "max_state_bytes": 16777216,
    "max_event_bytes": 1048576,
    "max_log_bytes": 8388608,
    "max_depth": 64,
    "log_ttl_s": 600,
    "state_ttl_s": 3600,
    "tombstone_ttl_s": 86400,
}


def job_body(members: Members, job: str = JOB) -> dict[str, Any]:
    """Build a job resource. By default, the job is queued and its cursor is 1-1. Members in the argument replace the
    defaults.
    """
    queued = {"status": "queued", "items": [{"status": "queued", "value": None}], "usage": {}, "notes": []}
    state = members.get("state", queued)
    done = members.get("done")
    return {
        "id": job,
        "endpoint": "demo",
        "status": state["status"],
        "batch": False,
        "state": state if done is None else {**state, "status": done["status"]},
        "columns": ["/items/0/value"],
        "cursor": "1-1",
        "attempt": 1,
        "created_at": "2026-03-01T12:00:00Z",
        "done": None,
        "links": {
            "self": f"/v1/jobs/{job}",
            "events": f"/v1/jobs/{job}/events",
            "cancel": f"/v1/jobs/{job}/cancel",
        },
        **{name: value for name, value in members.items() if name != "state"},
    } | ({} if done is None else {"status": done["status"]})


def problem_body(members: Members, status: int) -> dict[str, Any]:
    """Build a problem document. Members in the argument replace the defaults."""
    return {"title": members["code"], "status": status, "retryable": False, **members}


def discovery_body(members: Members) -> dict[str, Any]:
    """Build the discovery document. Members in the argument replace the defaults."""
    return {
        "protocol": "tidewire/1",
        "server": "scenario/1.0",
        "durability": "process",
        "capabilities": [],
        "limits": _LIMITS,
        "heartbeat_ms": 15_000,
        "endpoints": [{"name": "demo", "href": "/v1/endpoints/demo", "defaults": True}],
        **members,
    }


ENDPOINT: Members = {
    "name": "demo",
    "input_schema": {},
    "value_schema": {},
    "examples": [{}],
    "capabilities": {"streams": True, "batch": {"max_items": 64}, "cancel": True, "rollback": True},
    "links": {"self": "/v1/endpoints/demo", "jobs": "/v1/endpoints/demo/jobs"},
}
