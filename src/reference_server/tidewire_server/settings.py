"""Every setting of a server: its name, default and bounds.

The same names serve as keywords of `Server`, as flags of `tidewire serve` (`--max-body-bytes`), as environment
variables (`TIDEWIRE_MAX_BODY_BYTES`) and in a file (see `configuration`). Times are seconds.
"""

import math
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tidewire.protocol.resources import Limits
from tidewire_server.principals import TokenPrincipals
from tidewire_server.store_urls import file_of

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
KIB = 1024
MIB = KIB * KIB

SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which Python takes a busy thread's turn away. Python's own 0.005 keeps streams waiting."""


class Settings(BaseModel):
    """The settings of one server."""

    # Without the values: errors are printed and logged, and one of the settings is secret.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True)

    # ---- what runs ---------------------------------------------------------------------------------------------
    default_concurrency_limit: int | None = Field(
        1, ge=1, description="Items of one endpoint that run at a time where it sets no limit of its own."
    )
    max_threads: Count = Field(40, description="Worker threads for plain functions, all endpoints together.")
    max_queue_size: Count = Field(1000, description="Items of one endpoint that may wait; more get 429.")
    queue_interval: Seconds = Field(
        0.25, description="Least time between two announcements of queue positions."
    )
    cancel_timeout: Seconds = Field(5.0, description="Time that a cancelled function has to end by itself.")
    shutdown_timeout: Seconds = Field(10.0, description="Time that running jobs have to end at shutdown.")
    min_grace: Seconds = Field(
        60.0, description="Smallest `grace_ms` of a submit, in seconds; less is raised."
    )

    # ---- streams -----------------------------------------------------------------------------------------------
    heartbeat: float = Field(15.0, ge=0.001, le=300, description="Silence after which a stream sends a ping.")
    retry: float = Field(1.0, ge=0.001, le=60, description="Base of the reconnection time told to readers.")
    merge_window: float = Field(
        0.005,
        ge=0,
        le=1,
        description="Appends of one job within this time become one event, or within up to 0.05 s where the server is behind. 0: one event per call.",
    )
    min_snapshot_interval: float = Field(
        0.25, ge=0.001, le=3600, description="Least time between two snapshots of a `diffs=0` stream."
    )
    stall_timeout: float = Field(
        60.0, gt=0, le=3600, description="A stream that accepted no byte for this long is closed."
    )

    # ---- limits ------------------------------------------------------------------------------------------------
    max_connections: Count = Field(
        5_000, description="Open connections, idle ones and streams included; more get 503."
    )
    keep_alive_timeout: int = Field(
        5, ge=1, le=3600, description="Time that a connection stays open for its next request."
    )
    max_head_bytes: int = Field(64 * KIB, ge=KIB, description="Of one request's line and headers.")
    head_timeout: float = Field(
        30.0, gt=0, le=3600, description="Time in which a request's head must arrive."
    )
    max_body_bytes: Count = Field(8 * MIB, description="Of one request's body.")
    body_timeout: float = Field(
        30.0, gt=0, le=3600, description="Time in which a request's body must arrive."
    )
    max_input_bytes: Count = Field(
        1024 * MIB,
        description="Of the inputs of all jobs that have not ended; more get 429. A job that is alone may have more.",
    )
    max_inputs: Count = Field(1024, description="Inputs of one job.")
    max_jobs_per_principal: Count = Field(10_000, description="Unfinished jobs of one caller.")
    max_streams_per_principal: Count = Field(1_000, description="Open streams of one caller.")
    max_state_bytes: int = Field(16 * MIB, ge=KIB, description="Of one job's state, as JSON.")
    max_event_bytes: int = Field(
        MIB, ge=KIB, description="Of one event but snapshots; larger diffs are split."
    )
    max_log_bytes: int = Field(
        8 * MIB, ge=KIB, description="Of one job's log; past it the oldest are trimmed."
    )

    # ---- retention ---------------------------------------------------------------------------------------------
    log_ttl: Seconds = Field(600.0, description="How long an ended job's events can be replayed.")
    state_ttl: Seconds = Field(3600.0, description="How long an ended job's state is kept.")
    tombstone_ttl: Seconds = Field(86_400.0, description="How long a job that is gone is answered with 410.")
    idempotency_ttl: Seconds = Field(86_400.0, description="How long an Idempotency-Key is remembered.")
    max_retained_jobs: Count = Field(
        20_000, description="Ended jobs that are kept; past it the oldest expire early."
    )
    max_tombstones: Count = Field(100_000, description="Tombstones, and idempotency keys, that are kept.")

    # ---- the log -----------------------------------------------------------------------------------------------
    log: str = Field(
        "memory",
        description="Where jobs and their events are kept: memory, or sqlite:///PATH for a file that outlives this "
        "process; of an absolute path sqlite:////PATH.",
    )
    log_fsync: bool = Field(
        False,
        description="Write each commit to a file through to the disk: a power cut takes nothing. Costs time.",
    )
    max_attempts: Count = Field(
        10,
        description="Attempts at one job whose server did not stop in order; then it fails with `worker_lost`.",
    )

    # ---- who and where -----------------------------------------------------------------------------------------
    tokens: tuple[str, ...] = Field(
        (),
        repr=False,
        description="Bearer tokens that are let in, each TOKEN or PRINCIPAL:TOKEN. None: everybody is let in.",
    )
    stream_token_secret: str | None = Field(
        None,
        min_length=32,
        repr=False,
        description="What stream tokens are signed with, at least 32 characters: the same in all processes behind one "
        "address. None: drawn once for a log in a file, else at each start.",
    )
    stream_token_ttl: float = Field(
        300.0, ge=1, le=3600, description="How long a stream token opens its stream."
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="Origins whose pages may call this server. None by default; * for any, without credentials.",
    )
    root_path: str = Field(
        "", pattern=r"^(/[^/?#]+)*$", description="Prefix under which a proxy serves this server."
    )

    @field_validator("log")
    @classmethod
    def _names_a_log(cls, log: str) -> str:
        file_of(log)
        return log

    @field_validator("tokens")
    @classmethod
    def _are_tokens(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        TokenPrincipals(tokens)
        return tokens

    @property
    def limits(self) -> Limits:
        """The limits as discovery names them."""
        own = self.model_dump(include=set(Limits.model_fields))
        ttls = {
            f"{name}_s": math.ceil(getattr(self, name)) for name in ("log_ttl", "state_ttl", "tombstone_ttl")
        }
        return Limits(**own, **ttls)

    def but(self, **changes: Any) -> "Settings":
        """These settings with some changed, validated again.

        Raises:
            pydantic.ValidationError: A name is unknown, or a value out of bounds.
        """
        return Settings(**(self.model_dump() | changes))


GROUPS: Final = {
    "default_concurrency_limit": "What runs",
    "heartbeat": "Streams",
    "max_connections": "Limits",
    "log_ttl": "Retention",
    "log": "The log",
    "tokens": "Who and where",
}
"""The groups of settings, each by its first one, for whoever shows them."""
