"""Settings of a server and of `tidewire serve`: name, default, bounds, description.

The same names serve as keywords of `Server`, as environment variables (`TIDEWIRE_MAX_BODY_BYTES`) and in the
configuration file of `tidewire serve` (see `process/configuration.py`); the most used ones have a flag as well
(`process/flags.py`). Times are seconds.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tidewire.protocol.resources import Limits
from tidewire_server.principals import TokenPrincipals
from tidewire_server.store_urls import file_of

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
KIB = 1024
MIB = KIB * KIB

SWITCH_INTERVAL: Final = 0.0005
"""Python thread switch interval, in seconds. Python's own 0.005 keeps streams waiting while functions compute."""


class Settings(BaseModel):
    """The settings of one server."""

    # Without the values: errors are printed and logged, and one of the settings is secret.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True)

    # ---- what runs ---------------------------------------------------------------------------------------------
    default_concurrency_limit: int | None = Field(
        1, ge=1, description="Items that run at a time, for endpoints without a limit of their own."
    )
    max_threads: Count = Field(40, description="Worker threads for plain functions, all endpoints together.")
    max_queue_size: Count = Field(1000, description="Items of one endpoint that may wait; more get 429.")
    queue_interval: Seconds = Field(0.25, description="Least time between two updates of queue positions.")
    cancel_timeout: Seconds = Field(5.0, description="Time for a cancelled function to end by itself.")
    shutdown_timeout: Seconds = Field(10.0, description="Time for running jobs to end at shutdown.")
    min_grace: Seconds = Field(
        60.0, description="Smallest `grace_ms` of a submit, in seconds; smaller values are raised to it."
    )

    # ---- streams -----------------------------------------------------------------------------------------------
    heartbeat: float = Field(15.0, ge=0.001, le=300, description="Silence after which a stream sends a ping.")
    retry: float = Field(1.0, ge=0.001, le=60, description="Base of the reconnection time sent to readers.")
    merge_window: float = Field(
        0.005,
        ge=0,
        le=1,
        description="Time within which appends become one event; 0 for one event per call. Up to 0.05 s where the server is behind.",
    )
    min_snapshot_interval: float = Field(
        0.25, ge=0.001, le=3600, description="Least time between two snapshots of a `diffs=0` stream."
    )
    stall_timeout: float = Field(
        60.0, gt=0, le=3600, description="Time after which a stream that accepts no byte is closed."
    )

    # ---- limits ------------------------------------------------------------------------------------------------
    max_connections: Count = Field(
        5_000, description="Open connections, including idle ones and streams; more get 503."
    )
    keep_alive_timeout: int = Field(5, ge=1, le=3600, description="Time that an idle connection stays open.")
    max_head_bytes: int = Field(64 * KIB, ge=KIB, description="Bytes of one request's line and headers.")
    head_timeout: float = Field(
        30.0, gt=0, le=3600, description="Time in which a request's head must arrive."
    )
    max_body_bytes: Count = Field(8 * MIB, description="Bytes of one request's body.")
    body_timeout: float = Field(
        30.0, gt=0, le=3600, description="Time in which a request's body must arrive."
    )
    max_input_bytes: Count = Field(
        1024 * MIB,
        description="Bytes of the inputs of all unfinished jobs; more get 429. A job that is alone may have more.",
    )
    max_inputs: Count = Field(1024, description="Inputs of one job.")
    max_jobs_per_principal: Count = Field(10_000, description="Unfinished jobs of one caller.")
    max_streams_per_principal: Count = Field(1_000, description="Open streams of one caller.")
    max_state_bytes: int = Field(16 * MIB, ge=KIB, description="Bytes of one job's state, as JSON.")
    max_event_bytes: int = Field(
        MIB, ge=KIB, description="Bytes of one event; larger diffs are split. Snapshots may be larger."
    )
    max_log_bytes: int = Field(
        8 * MIB, ge=KIB, description="Bytes of one job's log; past it the oldest events are trimmed."
    )

    # ---- retention ---------------------------------------------------------------------------------------------
    log_ttl: Seconds = Field(600.0, description="How long an ended job's events can be replayed.")
    state_ttl: Seconds = Field(3600.0, description="How long an ended job's state is kept.")
    tombstone_ttl: Seconds = Field(86_400.0, description="How long a request for a deleted job gets 410.")
    idempotency_ttl: Seconds = Field(86_400.0, description="How long an Idempotency-Key is remembered.")
    max_retained_jobs: Count = Field(
        20_000, description="Ended jobs that are kept; past it the oldest expire early."
    )
    max_tombstones: Count = Field(100_000, description="Tombstones, and idempotency keys, that are kept.")

    # ---- the log -----------------------------------------------------------------------------------------------
    log: str = Field(
        "memory",
        description="Store of jobs and events: memory, or sqlite:///PATH for a file. The file outlives this process; an "
        "absolute path has four slashes: sqlite:////PATH.",
    )
    log_fsync: bool = Field(
        False,
        description="Sync each commit to the disk: a power cut loses nothing. Costs time.",
    )
    max_attempts: Count = Field(
        10,
        description="Runs of one job across crashes of its server. After that many it fails with `worker_lost`.",
    )

    # ---- access and address -------------------------------------------------------------------------------------
    tokens: tuple[str, ...] = Field(
        (),
        repr=False,
        description="Accepted bearer tokens, each TOKEN or PRINCIPAL:TOKEN. Without one, everybody has access.",
    )
    stream_token_secret: str | None = Field(
        None,
        min_length=32,
        repr=False,
        description="Key that signs stream tokens, at least 32 characters. The same in all processes behind one address. "
        "None: generated once for a log in a file, else at each start.",
    )
    stream_token_ttl: float = Field(300.0, ge=1, le=3600, description="How long a stream token is valid.")
    cors_origins: tuple[str, ...] = Field(
        (),
        description="Origins whose pages may call this server; * for any. None by default; with *, without credentials.",
    )
    root_path: str = Field(
        "", pattern=r"^(/[^/?#]+)*$", description="Path prefix under which a proxy serves this server."
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


class Launch(BaseModel):
    """Settings of the process that `tidewire serve` starts, as opposed to those of the server in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str | None = Field(
        None, description="MODULE:SERVER or FILE.py:SERVER; without it, text generation with a model."
    )
    host: str = Field("127.0.0.1", description="Address to bind to; 0.0.0.0 for all.")
    port: int = Field(8000, ge=0, le=65535, description="Port; 0 takes a free one.")
    port_file: Path | None = Field(
        None, description="File that receives the port number once the server answers."
    )
    model: Path | None = Field(
        None, description="Folder of a Hugging Face checkpoint; by default a small model that comes along."
    )
    device: str = Field("auto", description="Where the model runs: auto, cpu, cuda, cuda:1, mps.")
    script: bool = Field(False, description="Add the test endpoint tidewire.script.")
    switch_interval: float = Field(
        SWITCH_INTERVAL,
        ge=0.00001,
        le=1,
        description="Python thread switch interval (`sys.setswitchinterval`). Shorter than Python's own 0.005, so that "
        "plain functions that compute do not delay streams.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level logged to stderr: debug, info, warning or error."
    )
