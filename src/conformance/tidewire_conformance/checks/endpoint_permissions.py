"""Checks of endpoints that only some of the callers may use."""

from tidewire_conformance.checks.ownership import other_principal
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session
from tidewire_conformance.wire.recording_client import BUSY_STATUSES

MAX_ENDPOINTS = 8
"""Maximum number of endpoints that the check submits a job to."""


@check("TW-DSC-006", "TW-SEC-004", after="ownership")
async def listed_endpoint_is_usable_or_forbidden(s: Session) -> None:
    """A submission to an endpoint in the caller's discovery document is accepted, or refused with 403 `forbidden`.

    The suite submits jobs that the first caller may submit as a second caller. An endpoint that is missing from the
    second caller's discovery document may also look unknown.
    """
    other = other_principal(s)
    discovery = await other.request("GET", "/v1")
    s.skip_unless(discovery.status == 200, f"{discovery} returned {discovery.outcome}")
    listed = {each.get("name") for each in discovery.member("endpoints", []) if isinstance(each, dict)}
    samples = {sample.endpoint: sample for sample in s.server.samples if sample.ended == "succeeded"}
    for name, sample in list(samples.items())[:MAX_ENDPOINTS]:
        theirs = await other.request("POST", sample.submit_to, json=sample.body)
        if theirs.status == 201:
            s.at(theirs).status("TW-DSC-006", 201, f"for {name}")
            await other.request("POST", f"/v1/jobs/{theirs.member('id')}/cancel")
            continue
        if theirs.status in BUSY_STATUSES:
            continue
        mine = await s.submit(sample)
        await s.cancel(mine)
        hidden = name not in listed and theirs.outcome == "404 endpoint_not_found"
        wanted = f"403 forbidden for {name}, which the first caller may use"
        s.at(theirs).response(
            ("TW-DSC-006", "TW-SEC-004"), hidden or theirs.outcome == "403 forbidden", wanted
        )
    if not s.assertions:
        s.skip_untested("no example of an endpoint succeeded")
