"""Faulty servers that write JSON, times or absent members wrongly."""

from proof.servers.expected_side_failures import INVALID_JSON
from proof.servers.fault_helpers import rewrite_body, rewrite_events
from proof.servers.faults import fault

# fmt: off
fault("nan_in_an_event", "TW-OVR-002", "json_and_times.all_json_is_valid",
      "An event contains NaN.",
      frames=rewrite_events(b'"heartbeat_ms":400', b'"heartbeat_ms":NaN'),
      also_fails=INVALID_JSON)
fault("duplicate_member_in_an_event", "TW-OVR-004", "json_and_times.all_json_is_valid",
      "An event contains a duplicate member.",
      frames=rewrite_events(b'{"protocol"', b'{"job":"x","protocol"'),
      also_fails={"the check parses events by the rules for JSON": "state.text_lengths_count_code_points"})

fault("absent_member_written_as_null", "TW-OVR-026", "json_and_times.nulls_and_times_are_well_formed",
      "An absent member is written as null.",
      bodies=rewrite_body(rb'^(?!.*"expires_at")(.*)"attempt":', rb'\1"expires_at":null,"attempt":'),
      also_run="jobs.submit_returns_the_job",
      also_fails={"null violates the schema of a job":
          "jobs.submit_returns_the_job jobs.response_bodies_fit_their_schemas"})
fault("times_with_utc_offset", "TW-OVR-011", "json_and_times.nulls_and_times_are_well_formed",
      "Times have the offset `+00:00` instead of `Z`.",
      bodies=rewrite_body(rb'(_at":"[^"]+)Z"', rb'\1+00:00"'),
      also_run="jobs.submit_returns_the_job",
      also_fails={"the suite does not accept a job with such times as a job that has ended":
          "batch.* deadlines.* disconnects.*"} | {"times occur in all kinds of responses": "jobs.* browser.stream_token_opens_its_stream"})
fault("integers_with_a_fraction", "TW-OVR-010", "json_and_times.nulls_and_times_are_well_formed",
      "Integers are written with a fraction, such as `1.0`.",
      bodies=rewrite_body(rb'("attempt":\d+)', rb"\1.0"),
      also_run="jobs.submit_returns_the_job")
fault("months_counted_from_0", "TW-OVR-011", "json_and_times.nulls_and_times_are_well_formed",
      "Months in times are counted from 0.",
      bodies=rewrite_body(rb'("created_at":"\d+)-\d+-', rb"\1-00-"),
      also_run="jobs.submit_returns_the_job")
# fmt: on
