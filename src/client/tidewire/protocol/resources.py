"""Pydantic models of HTTP request and response bodies: discovery, endpoints, submits, jobs, cancels, stream tokens."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tidewire.protocol.base_model import Count, Flag, Positive, WireModel
from tidewire.protocol.messages import PROTOCOL, Done, JobStatus

API_ROOT = "/v1"


class Limits(WireModel):
    """The limits of a server. Sizes are in bytes; the suffix of a time names its unit."""

    max_body_bytes: Positive = 8 * 2**20
    max_inputs: Positive = 1024
    max_jobs_per_principal: Positive = 10_000
    max_streams_per_principal: Positive = 1_000
    max_state_bytes: Positive = 16 * 2**20
    max_event_bytes: Positive = 2**20
    max_log_bytes: Positive = 8 * 2**20
    """Maximum size of one job's event log. Beyond it, the server trims the oldest events."""
    max_depth: Positive = 64
    log_ttl_s: Count = 600
    """Time after a job's end for which its events can be replayed."""
    state_ttl_s: Count = 3600
    """Time after a job's end for which its state is kept."""
    tombstone_ttl_s: Count = 86_400
    """Time for which the server answers requests for a purged or expired job with 410."""
    max_retained_jobs: Positive | None = None
    """Maximum number of ended jobs that are kept. Beyond it, the server deletes the oldest ones early. None: no limit."""
    max_tombstones: Positive | None = None
    """Maximum number of tombstones, and of idempotency keys, that are kept. Beyond it, the server deletes the oldest
    ones early. None: no limit."""


class Batch(WireModel):
    """The batch capability of an endpoint: a job may have many inputs."""

    max_items: Positive


class LogprobsCapability(WireModel):
    """The log-probabilities capability of an endpoint. `max_top` limits the candidates per token."""

    max_top: Count


class EndpointCapabilities(WireModel):
    """The capabilities of one endpoint."""

    streams: Flag = False
    """Whether the value changes while the job runs."""
    batch: Batch | None = None
    logprobs: LogprobsCapability | None = None
    cancel: Flag = True
    rollback: Flag = False
    """Whether text may be truncated after it was sent."""


class EndpointSummary(WireModel):
    """Entry of an endpoint in the discovery document."""

    name: str
    summary: str = ""
    href: str
    defaults: Flag = False
    """Whether an empty input is valid, so that a submit needs no members."""


class EndpointDescription(WireModel):
    """Description of an endpoint: JSON Schemas (2020-12) of its input and value, examples, capabilities."""

    name: str
    summary: str = ""
    description: str = ""
    input_schema: dict[str, JsonValue]
    value_schema: dict[str, JsonValue]
    examples: list[JsonValue] = Field(default_factory=list)
    capabilities: EndpointCapabilities
    links: dict[str, str] = Field(default_factory=dict)
    """Links by name: `self`, `jobs` (to submit to), and optional ones such as `vocabulary`."""


class Discovery(WireModel):
    """The discovery document: response of `GET /v1`."""

    protocol: str = PROTOCOL
    server: str
    durability: Literal["process", "host", "replicated"]
    capabilities: list[str]
    """Names of the server's optional features: `list`, `delete`, `stream_tokens`, `snapshots_only`, `batches`,
    `logprobs`, `inband_problems`, `idempotency`. Clients ignore unknown names."""
    limits: Limits
    heartbeat_ms: Positive
    min_interval_ms: Count | None = None
    """Shortest interval between two snapshots of a snapshots-only stream. Requires the capability `snapshots_only`."""
    endpoints: list[EndpointSummary]


class SubmitBody(BaseModel):
    """Request body of a submit. It has exactly one of `input` and `inputs`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    input: JsonValue = None
    inputs: list[JsonValue] | None = Field(default=None, min_length=1)
    shared: dict[str, JsonValue] = Field(default_factory=dict)
    """Members added to every input object that does not have them."""
    on_disconnect: Literal["continue", "cancel"] = "continue"
    grace_ms: Count = 60_000
    deadline_ms: Positive | None = None


class JobLinks(WireModel):
    """Links of a job: URI references relative to the URL of the response that contains them."""

    self: str
    events: str
    cancel: str


class JobResource(WireModel):
    """Response of `GET /v1/jobs/{id}`. `state`, `columns` and `cursor` are read atomically. Lists omit `state`."""

    id: str
    endpoint: str
    status: JobStatus
    batch: Flag
    state: dict[str, Any] | None = None
    columns: list[str] = Field(default_factory=list)
    cursor: str
    """Id of the last event that `state` includes. For an ended job, the id of its `done` event."""
    attempt: Positive = 1
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    expires_at: str | None = None
    done: Done | None = None
    """Data of the job's `done` event; None while the job runs."""
    links: JobLinks


class JobList(WireModel):
    """Response of `GET /v1/jobs`: one page of jobs, newest first. The entries omit `state`."""

    jobs: list[JobResource]
    next: str | None = None
    """URI reference of the next page; None on the last page."""


class Cancel(WireModel):
    """Optional request body of a cancel."""

    items: list[Count] | None = None
    """Indices of the items to cancel. None: all items. An empty list cancels no item."""


class StreamToken(WireModel):
    """Response of `POST /v1/jobs/{id}/stream-token`."""

    url: str
    """URI reference of the job's stream with the token, which replaces all other credentials."""
    expires_at: str
