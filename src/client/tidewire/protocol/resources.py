"""The bodies of the HTTP surface: discovery, endpoints, submits, jobs, cancels, stream tokens."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tidewire.protocol.base_model import Count, Flag, Positive, WireModel
from tidewire.protocol.messages import PROTOCOL, Done, JobStatus

API_ROOT = "/v1"


class Limits(WireModel):
    """Every limit of a server, by name. Sizes are bytes, times as their suffix says."""

    max_body_bytes: Positive = 8 * 2**20
    max_inputs: Positive = 1024
    max_jobs_per_principal: Positive = 10_000
    max_streams_per_principal: Positive = 1_000
    max_state_bytes: Positive = 16 * 2**20
    max_event_bytes: Positive = 2**20
    max_log_bytes: Positive = 8 * 2**20
    """Of one job's log; past it the oldest events are trimmed."""
    max_depth: Positive = 64
    log_ttl_s: Count = 600
    """How long an ended job's events can be replayed."""
    state_ttl_s: Count = 3600
    """How long an ended job's state is kept."""
    tombstone_ttl_s: Count = 86_400
    """How long a purged or expired job is answered with 410."""
    max_retained_jobs: Positive | None = None
    """How many jobs that have ended are kept; past it the oldest go early. None: no bound by number."""
    max_tombstones: Positive | None = None
    """How many tombstones, and how many idempotency keys, are kept; likewise."""


class Batch(WireModel):
    """That an endpoint takes many inputs in one job, and how many."""

    max_items: Positive


class LogprobsCapability(WireModel):
    """That an endpoint gives log-probabilities, and of how many candidates a token."""

    max_top: Count


class EndpointCapabilities(WireModel):
    """What one endpoint can do."""

    streams: Flag = False
    """Its value grows while it runs."""
    batch: Batch | None = None
    logprobs: LogprobsCapability | None = None
    cancel: Flag = True
    rollback: Flag = False
    """Text that was sent may be truncated later."""


class EndpointSummary(WireModel):
    """An endpoint in discovery."""

    name: str
    summary: str = ""
    href: str
    defaults: Flag = False
    """Whether an empty input is valid, so that a submit without members runs."""


class EndpointDescription(WireModel):
    """One endpoint: schemas (JSON Schema 2020-12) of one input and of its value, and examples of valid input."""

    name: str
    summary: str = ""
    description: str = ""
    input_schema: dict[str, JsonValue]
    value_schema: dict[str, JsonValue]
    examples: list[JsonValue] = Field(default_factory=list)
    capabilities: EndpointCapabilities
    links: dict[str, str] = Field(default_factory=dict)
    """`self` and `jobs` (where to submit); further ones by name."""


class Discovery(WireModel):
    """What `GET /v1` answers."""

    protocol: str = PROTOCOL
    server: str
    durability: Literal["process", "host", "replicated"]
    capabilities: list[str]
    """Of `list`, `delete`, `stream_tokens`, `snapshots_only`, `batches`, `logprobs`, `inband_problems`,
    `idempotency`; unknown ones are ignored."""
    limits: Limits
    heartbeat_ms: Positive
    min_interval_ms: Count | None = None
    """The least time between two snapshots of a stream without diffs; with the capability `snapshots_only`."""
    endpoints: list[EndpointSummary]


class SubmitBody(BaseModel):
    """The body of a submit. Exactly one of `input` and `inputs`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    input: JsonValue = None
    inputs: list[JsonValue] | None = Field(default=None, min_length=1)
    shared: dict[str, JsonValue] = Field(default_factory=dict)
    """Members that every object input gets unless it has its own."""
    on_disconnect: Literal["continue", "cancel"] = "continue"
    grace_ms: Count = 60_000
    deadline_ms: Positive | None = None


class JobLinks(WireModel):
    """URI references, resolved against the URL of the answer that carries them."""

    self: str
    events: str
    cancel: str


class JobResource(WireModel):
    """What `GET /v1/jobs/{id}` answers. `state`, `columns` and `cursor` are one atomic read; a list leaves `state` out."""

    id: str
    endpoint: str
    status: JobStatus
    batch: Flag
    state: dict[str, Any] | None = None
    columns: list[str] = Field(default_factory=list)
    cursor: str
    """The id up to which `state` is; of an ended job the id of its `done`."""
    attempt: Positive = 1
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    expires_at: str | None = None
    done: Done | None = None
    """Null while the job runs, else the data of its `done` event."""
    links: JobLinks


class JobList(WireModel):
    """What `GET /v1/jobs` answers: one page, newest first. Its entries leave `state` out."""

    jobs: list[JobResource]
    next: str | None = None
    """URI reference of the next page; absent on the last one."""


class Cancel(WireModel):
    """The body of a cancel, which may be absent."""

    items: list[Count] | None = None
    """Indices of the items; an empty list is none of them. None: all."""


class StreamToken(WireModel):
    """What `POST /v1/jobs/{id}/stream-token` answers."""

    url: str
    """URI reference of one job's stream that needs no other credentials."""
    expires_at: str
