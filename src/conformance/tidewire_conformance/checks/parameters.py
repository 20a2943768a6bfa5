"""Checks for section 6.1: the query parameters of each URL."""

from tidewire_conformance.registry import check
from tidewire_conformance.session import Session


@check("TW-JOB-006", "TW-JOB-007", "TW-JOB-078")
async def default_parameter_values_are_accepted(s: Session) -> None:
    """The server accepts the default values `diffs=1` and `errors=http`, and ignores parameters that belong to other
    URLs.
    """
    job, _ = await s.run_to_end(s.any_sample())
    for query in ("?diffs=1", "?errors=http", "?diffs=1&errors=http&after=&token=&min_interval_ms="):
        answer = await s.stream(job, query=query)
        requirement = "TW-JOB-078" if "after" in query else "TW-JOB-007"
        s.at(answer).response(requirement, answer.of_type("done"), f"the stream for {query}")
    listed = ["/v1/jobs?colour=red&diffs=2"] if "list" in s.server.capabilities else []
    for place in ("/v1?colour=red", "/v1?diffs=2&limit=0", f"{job.path}?errors=yes&after=x", *listed):
        answer = await s.get(place)
        s.at(answer).status("TW-JOB-006", 200, f"for {place}")
    answer = await s.wire.request(
        "POST", f"{job.sample.submit_to}?after=x&diffs=2&errors=yes", json=job.sample.body
    )
    s.at(answer).status("TW-JOB-006", 201, "for a submit, which ignores the parameters of streams")


@check("TW-JOB-007", "TW-JOB-078", needs=["list"])
async def limit_outside_1_to_1000_returns_400(s: Session) -> None:
    """A `limit` that is not a number from 1 to 1000 gets 400 `bad_parameter`, and an empty `limit` counts as absent."""
    for value in ("0", "1001", "-1", "+1", "x", "1.0", "1&limit=1", "9" * 400):
        answer = await s.get(f"/v1/jobs?limit={value}")
        s.at(answer).refused("TW-JOB-007", 400, "bad_parameter", f"limit={value[:20]}")
    for value in ("", "1", "1000"):
        answer = await s.get(f"/v1/jobs?limit={value}")
        s.at(answer).status("TW-JOB-007" if value else "TW-JOB-078", 200, f"for limit={value}")


@check("TW-JOB-007", needs=["snapshots_only"])
async def invalid_min_interval_ms_returns_400(s: Session) -> None:
    """A `min_interval_ms` that is not an integer from 0 to 2147483648 gets 400 `bad_parameter`."""
    job, _ = await s.run_to_end(s.any_sample())
    for value in ("-1", "+1", "1.5", "1e3", "2147483649", "9" * 400):
        answer = await s.stream(job, query=f"?diffs=0&min_interval_ms={value}")
        s.at(answer).refused("TW-JOB-007", 400, "bad_parameter", f"min_interval_ms={value[:20]}")
    for value in ("0", "2147483648"):
        answer = await s.stream(job, query=f"?diffs=0&min_interval_ms={value}")
        s.at(answer).response("TW-JOB-007", answer.of_type("done"), f"the stream for min_interval_ms={value}")


@check("TW-JOB-006", "TW-JOB-007", "TW-JOB-078", "TW-OVR-009")
async def invalid_parameters_return_400(s: Session) -> None:
    """Unknown query parameters are ignored, empty ones count as absent, and repeated or invalid ones get 400
    `bad_parameter`.
    """
    sample = s.any_sample()
    job, history = await s.run_to_end(sample)
    for query in ("?colour=red", "?diffs=&errors=", "?after=&colour="):
        answer = await s.stream(job, query=query)
        s.at(answer).response(
            "TW-JOB-006" if "colour" in query else "TW-JOB-078", answer.is_stream, f"a stream for {query}"
        )
    first = history.logged[0].id
    twice = ["after=" + (first or ""), "errors=http", "diffs=1", "min_interval_ms=500&diffs=0"]
    wrong = [f"?{each}&{each}" for each in twice]
    wrong += ["?diffs=2", "?diffs=true", "?diffs=false", "?errors=yes", "?diffs=0&min_interval_ms=x"]
    for query in wrong:
        answer = await s.stream(job, query=query)
        s.at(answer).refused("TW-JOB-007", 400, "bad_parameter", query)
    answer = await s.post(sample, json={**sample.body, "x.colour": {"red": [1]}})
    s.at(answer).status("TW-OVR-009", 201, "for a body with an unknown member")
