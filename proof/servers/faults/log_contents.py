"""Faulty servers that log more or less than they should."""

from proof.servers.fault_helpers import rewrite_body
from proof.servers.faults import fault

# fmt: off
fault("changes_not_merged", "TW-DIF-041", "log_contents.continuous_changes_are_merged",
      "Every change is logged as an event of its own.",
      settings={"merge_window": 0.0})
fault("log_deleted_at_the_end", "TW-RES-027", "log_contents.log_of_an_ended_job_is_kept",
      "The log of a job is deleted as soon as the job has ended.",
      settings={"log_ttl": 0.0}, bodies=rewrite_body(b'"log_ttl_s":0,', b'"log_ttl_s":600,', at="/v1"))
# fmt: on
