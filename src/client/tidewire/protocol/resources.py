"""Models of the bodies of HTTP requests and responses, for discovery, endpoints, jobs and stream tokens."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from tidewire.protocol.messages import PROTOCOL, Done, JobStatus
from tidewire.protocol.strict_json import JsonValue
from tidewire.protocol.wire_model import Count, Positive, WireModel, build_models

API_ROOT = "/v1"


class Limits(WireModel, frozen=True, kw_only=True):
    """The limits of a server. Sizes are in bytes. The name of a time ends with its unit, such as `_s` for seconds. A limit
    that the server does not declare has the default of the specification.
    """

    max_body_bytes: Positive = 8 * 2**20
    max_inputs: Positive = 1024
    max_jobs_per_principal: Positive = 10_000
    max_streams_per_principal: Positive = 1_000
    max_state_bytes: Positive = 16 * 2**20
    max_event_bytes: Positive = 2**20
    max_event_ops: Annotated[int, Meta(ge=64, le=10_000)] = 10_000
    """Maximum number of ops of one diff. The server splits a longer diff."""
    max_log_bytes: Positive = 8 * 2**20
    """Maximum size of the event log of one job. When the log is larger, the server deletes the oldest events."""
    max_depth: Positive = 64
    log_ttl_s: Count = 0
    """Time for which a job's events can be replayed, counted from the job's end."""
    state_ttl_s: Count = 3600
    """Time for which the server keeps a job's state, counted from the job's end."""
    tombstone_ttl_s: Count = 0
    """Time for which the server remembers a deleted or expired job, and answers requests for the job with the status
    410."""
    min_grace_ms: Count | None = None
    """Minimum of `grace_ms` of a submission. The server raises a smaller value to this one. None: 60000."""
    max_retained_jobs: Positive | None = None
    """Maximum number of ended jobs that the server keeps. When there are more, the server deletes the oldest ended jobs
    early. None: no limit."""
    max_retained_bytes: Positive | None = None
    """Maximum size of the states and events of all ended jobs that the server keeps. When it is exceeded, the server
    deletes ended jobs early, except the newest. None: no limit."""
    max_tombstones: Positive | None = None
    """Maximum number of tombstones that the server keeps, that is of records of deleted or expired jobs. The same limit
    applies to the number of idempotency keys. When there are more, the server deletes the oldest early. None: no
    limit."""


class Batch(WireModel, frozen=True, kw_only=True):
    """Capability of an endpoint to accept jobs with many inputs."""

    max_items: Positive


class LogprobsCapability(WireModel, frozen=True, kw_only=True):
    """Capability of an endpoint to return log-probabilities. `max_top` is the maximum number of candidates for each
    token.
    """

    max_top: Count


class ModelCapability(WireModel, frozen=True, kw_only=True):
    """Model of an endpoint for text generation."""

    name: str
    architecture: str = ""
    """Type of the model, such as `llama`."""
    dtype: str = ""
    """Type of the weights, such as `bfloat16`."""
    device: str = ""
    """Device that runs the model, such as `cuda:0`."""
    context: Positive | None = None
    """Maximum number of tokens of the prompt and the generated text together."""
    features: list[str] = field(default_factory=list)
    """Names of the input members that the endpoint supports."""


class EndpointCapabilities(WireModel, frozen=True, kw_only=True):
    """The capabilities of one endpoint."""

    streams: bool = False
    """Whether the value changes while the job runs."""
    batch: Batch | None = None
    logprobs: LogprobsCapability | None = None
    model: ModelCapability | None = None
    """The model that generates the text, if the endpoint is for text generation."""
    cancel: bool = True
    rollback: bool = False
    """Whether the endpoint may truncate text that the server has already sent."""


class EndpointSummary(WireModel, frozen=True, kw_only=True):
    """Entry for one endpoint in the discovery document."""

    name: str
    summary: str = ""
    href: str
    defaults: bool = False
    """Whether an empty input is valid, because all members of the input have defaults."""
    workers: Count | None = None
    """Number of live processes that run the endpoint. Only servers that share a database have this member."""


class EndpointDescription(WireModel, frozen=True, kw_only=True):
    """Description of an endpoint, with the JSON Schemas (2020-12) of its input and its value, examples and
    capabilities.
    """

    name: str
    summary: str = ""
    description: str = ""
    input_schema: dict[str, JsonValue]
    value_schema: dict[str, JsonValue]
    examples: list[JsonValue] = field(default_factory=list)
    capabilities: EndpointCapabilities
    on_restart: Literal["rerun", "continue", "fail"] = "rerun"
    """What a restart of the server does with the items that had not ended: a new attempt retracts their values (`rerun`)
    or keeps them (`continue`), or the running items fail (`fail`)."""
    links: dict[str, str] = field(default_factory=dict)
    """Links by name. There are always `self` and `jobs`, the URL to which clients submit jobs. Other links, such as
    `vocabulary`, are optional."""


class Discovery(WireModel, frozen=True, kw_only=True):
    """The discovery document, which the server sends in response to `GET /v1`."""

    protocol: str = PROTOCOL
    server: str
    durability: Literal["process", "host", "replicated"]
    capabilities: list[str]
    """Names of the server's optional features: `list`, `delete`, `stream_tokens`, `snapshots_only`, `batches`,
    `logprobs`, `inband_problems`, `deadlines`, `disconnect`, `idempotency`. Clients ignore unknown names."""
    limits: Limits
    heartbeat_ms: Positive
    min_interval_ms: Count | None = None
    """Minimum interval between two snapshots in a stream that contains only snapshots. Only servers with the capability
    `snapshots_only` have this member."""
    endpoints: list[EndpointSummary]


class SubmitBody(WireModel, frozen=True, kw_only=True):
    """Body of a request that submits a job. It has either `input` or `inputs`, but not both."""

    input: JsonValue = None
    inputs: Annotated[list[JsonValue], Meta(min_length=1)] | None = None
    shared: dict[str, JsonValue] = field(default_factory=dict)
    """Members that the server adds to every input object that does not already have them."""
    on_disconnect: Literal["continue", "cancel"] = "continue"
    grace_ms: Count = 60_000
    deadline_ms: Positive | None = None


class JobLinks(WireModel, frozen=True, kw_only=True):
    """Links of a job. They are URI references relative to the URL of the response that contains them."""

    self: str
    events: str
    cancel: str


class JobResource(WireModel, frozen=True, kw_only=True):
    """Body of the response to `GET /v1/jobs/{id}`. The server reads `state`, `columns` and `cursor` atomically. The
    jobs in a list of jobs have no `state`.
    """

    id: str
    endpoint: str
    status: JobStatus
    batch: bool
    state: dict[str, Any] | None = None
    columns: list[str] = field(default_factory=list)
    cursor: str
    """Id of the last event that was applied to `state`. If the job has ended, this is the id of its `done` event."""
    attempt: Positive = 1
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    expires_at: str | None = None
    done: Done | None = None
    """Data of the job's `done` event; None while the job runs."""
    links: JobLinks


class JobList(WireModel, frozen=True, kw_only=True):
    """Body of the response to `GET /v1/jobs`. It contains one page of the list of jobs, newest first. The listed jobs
    have no `state`.
    """

    jobs: list[JobResource]
    next: str | None = None
    """URI reference of the next page; None on the last page."""


class Cancel(WireModel, frozen=True, kw_only=True):
    """Body of a request to cancel a job. The body is optional."""

    items: list[Count] | None = None
    """Indices of the items to cancel. None: all items. An empty list cancels no item."""


class StreamToken(WireModel, frozen=True, kw_only=True):
    """Body of the response to `POST /v1/jobs/{id}/stream-token`."""

    url: str
    """URI reference of the job's stream, including the token. The token replaces all other credentials."""
    expires_at: str


build_models(globals())
