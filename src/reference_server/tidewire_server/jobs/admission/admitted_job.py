"""`AdmittedJob`, a submit request that was admitted."""

from typing import NamedTuple

from pydantic import BaseModel

from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.jobs.admission.submit_body import Submission
from tidewire_server.jobs.recovered_inputs import StoredInputs


class AdmittedJob(NamedTuple):
    """A request to submit a job, after its inputs were validated."""

    endpoint: Endpoint
    submission: Submission
    values: list[BaseModel]
    """Validated inputs of the items. Empty for a recovered job."""
    stored: StoredInputs | None = None
    """Inputs of a recovered job. None for a new job."""
