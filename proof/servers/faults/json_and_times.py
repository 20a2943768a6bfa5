"""Faulty servers that write JSON, times or absent members wrongly."""

from proof.servers.fault_helpers import rewrite_body, rewrite_events
from proof.servers.faults import faulty_server


@faulty_server("TW-OVR-002", "json_and_times.all_json_is_valid")
def nan_in_an_event(hooks):
    """An event contains NaN."""
    rewrite_events(hooks, b'"heartbeat_ms":400', b'"heartbeat_ms":NaN')


@faulty_server("TW-OVR-004", "json_and_times.all_json_is_valid")
def duplicate_member_in_an_event(hooks):
    """An event contains a duplicate member."""
    rewrite_events(hooks, b'{"protocol"', b'{"job":"x","protocol"')


@faulty_server(
    "TW-OVR-026",
    "json_and_times.nulls_and_times_are_well_formed",
    "jobs.submit_returns_the_job",
)
def absent_member_written_as_null(hooks):
    """An absent member is written as null."""
    rewrite_body(hooks, b'"attempt":', b'"expires_at":null,"attempt":')


@faulty_server(
    "TW-OVR-011",
    "json_and_times.nulls_and_times_are_well_formed",
    "jobs.submit_returns_the_job",
)
def times_with_utc_offset(hooks):
    """Times have the offset `+00:00` instead of `Z`."""
    rewrite_body(hooks, rb'(_at":"[^"]+)Z"', rb'\1+00:00"')


@faulty_server(
    "TW-OVR-010",
    "json_and_times.nulls_and_times_are_well_formed",
    "jobs.submit_returns_the_job",
)
def integers_with_a_fraction(hooks):
    """Integers are written with a fraction, such as `1.0`."""
    rewrite_body(hooks, rb'("attempt":\d+)', rb"\1.0")


@faulty_server(
    "TW-OVR-011",
    "json_and_times.nulls_and_times_are_well_formed",
    "jobs.submit_returns_the_job",
)
def months_counted_from_0(hooks):
    """Months in times are counted from 0."""
    rewrite_body(hooks, rb'("created_at":"\d+)-\d+-', rb"\1-00-")
