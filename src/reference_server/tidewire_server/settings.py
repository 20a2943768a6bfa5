"""Settings of a server and of `tidewire serve`, with their defaults, bounds and descriptions.

Each setting has the same name as a keyword argument of `Server`, as an environment variable
(`TIDEWIRE_MAX_BODY_BYTES`) and in the configuration file of `tidewire serve` (see `process/configuration.py`). The most
common settings also have a flag (`process/flags.py`). Times are in seconds.
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
"""Python thread switch interval, in seconds. With Python's default of 0.005, computing functions delay streams."""


class Settings(BaseModel):
    """Settings of one server."""

    # Hide input values in errors: errors are printed and logged, and some settings are secrets.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True)

    # ---- jobs --------------------------------------------------------------------------------------------------
    default_concurrency_limit: int | None = Field(
        1, ge=1, description="Items that run concurrently, for endpoints that set no limit themselves."
    )
    max_threads: Count = Field(
        40, description="Worker threads for synchronous functions, shared by all endpoints."
    )
    max_queue_size: Count = Field(
        1000, description="Items of one endpoint that may wait; further submits get 429."
    )
    queue_interval: Seconds = Field(0.25, description="Minimum time between two updates of queue positions.")
    cancel_timeout: Seconds = Field(5.0, description="Time for a cancelled function to return.")
    shutdown_timeout: Seconds = Field(10.0, description="Time for running jobs to end during shutdown.")
    min_grace: Seconds = Field(
        60.0, description="Minimum of `grace_ms` in a submit, in seconds; smaller values are raised to this."
    )

    # ---- streams -----------------------------------------------------------------------------------------------
    heartbeat: float = Field(
        15.0, ge=0.001, le=300, description="Time without events after which a stream sends a ping."
    )
    retry: float = Field(1.0, ge=0.001, le=60, description="Base of the reconnection delay sent to readers.")
    merge_window: float = Field(
        0.005,
        ge=0,
        le=1,
        description="Time within which appends are merged into one event; 0 for one event per call. Up to 0.05 s under load.",
    )
    min_snapshot_interval: float = Field(
        0.25, ge=0.001, le=3600, description="Minimum time between two snapshots of a `diffs=0` stream."
    )
    stall_timeout: float = Field(
        60.0, gt=0, le=3600, description="Time after which a stream is closed if its reader accepts no byte."
    )

    # ---- limits ------------------------------------------------------------------------------------------------
    max_connections: Count = Field(
        5_000, description="Open connections, including idle ones and streams; further ones get 503."
    )
    keep_alive_timeout: int = Field(
        5, ge=1, le=3600, description="Time after which an idle connection is closed."
    )
    max_head_bytes: int = Field(
        64 * KIB, ge=KIB, description="Size of a request's line and headers, in bytes."
    )
    head_timeout: float = Field(
        30.0, gt=0, le=3600, description="Time within which a request's head must arrive."
    )
    max_body_bytes: Count = Field(8 * MIB, description="Size of a request's body, in bytes.")
    body_timeout: float = Field(
        30.0, gt=0, le=3600, description="Time within which a request's body must arrive."
    )
    max_input_bytes: Count = Field(
        1024 * MIB,
        description="Total size of the inputs of unfinished jobs, in bytes; further submits get 429. A single job may exceed it.",
    )
    max_inputs: Count = Field(1024, description="Number of inputs of one job.")
    max_jobs_per_principal: Count = Field(10_000, description="Unfinished jobs per principal.")
    max_streams_per_principal: Count = Field(1_000, description="Open streams per principal.")
    max_state_bytes: int = Field(16 * MIB, ge=KIB, description="Size of one job's state as JSON, in bytes.")
    max_event_bytes: int = Field(
        MIB,
        ge=KIB,
        description="Size of one event, in bytes; larger diffs are split. Snapshots may be larger.",
    )
    max_log_bytes: int = Field(
        8 * MIB,
        ge=KIB,
        description="Size of one job's log, in bytes; beyond it the oldest events are trimmed.",
    )

    # ---- retention ---------------------------------------------------------------------------------------------
    log_ttl: Seconds = Field(600.0, description="Time for which an ended job's events can be replayed.")
    state_ttl: Seconds = Field(3600.0, description="Time for which an ended job's state is stored.")
    tombstone_ttl: Seconds = Field(86_400.0, description="Time for which requests for a deleted job get 410.")
    idempotency_ttl: Seconds = Field(86_400.0, description="Time for which an Idempotency-Key is stored.")
    max_retained_jobs: Count = Field(
        20_000, description="Number of ended jobs that are stored; beyond it the oldest expire early."
    )
    max_tombstones: Count = Field(
        100_000, description="Number of tombstones, and of idempotency keys, that are stored."
    )

    # ---- the log -----------------------------------------------------------------------------------------------
    log: str = Field(
        "memory",
        description="Store of jobs and events: memory, or sqlite:///PATH for a file, which survives restarts. An "
        "absolute path has four slashes: sqlite:////PATH.",
    )
    log_fsync: bool = Field(
        False,
        description="Sync each commit to the disk, so that a power failure loses nothing; slower.",
    )
    max_attempts: Count = Field(
        10,
        description="Maximum number of runs of a job across server crashes, after which it fails with `worker_lost`.",
    )

    # ---- access and address -------------------------------------------------------------------------------------
    tokens: tuple[str, ...] = Field(
        (),
        repr=False,
        description="Accepted bearer tokens, each TOKEN or PRINCIPAL:TOKEN. Without tokens, every client has access.",
    )
    stream_token_secret: str | None = Field(
        None,
        min_length=32,
        repr=False,
        description="Key that signs stream tokens, at least 32 characters. Use the same in all processes behind one address. "
        "None: generated once per log file, or at each start if the log is in memory.",
    )
    stream_token_ttl: float = Field(
        300.0, ge=1, le=3600, description="Time for which a stream token is valid."
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="Origins whose pages may call this server; * for any origin, without credentials. None by default.",
    )
    root_path: str = Field(
        "", pattern=r"^(/[^/?#]+)*$", description="Path prefix under which a proxy serves this server."
    )

    @field_validator("log")
    @classmethod
    def _check_log(cls, log: str) -> str:
        file_of(log)
        return log

    @field_validator("tokens")
    @classmethod
    def _check_tokens(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        TokenPrincipals(tokens)
        return tokens

    @property
    def limits(self) -> Limits:
        """Limits as reported by discovery."""
        own = self.model_dump(include=set(Limits.model_fields))
        ttls = {
            f"{name}_s": math.ceil(getattr(self, name)) for name in ("log_ttl", "state_ttl", "tombstone_ttl")
        }
        return Limits(**own, **ttls)

    def replace(self, **changes: Any) -> "Settings":
        """Return a validated copy of the settings with some values changed.

        Raises:
            pydantic.ValidationError: A name is unknown, or a value is out of bounds.
        """
        return Settings(**(self.model_dump() | changes))


class Launch(BaseModel):
    """Settings of the `tidewire serve` process, in addition to those of its server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str | None = Field(
        None,
        description="MODULE:SERVER or FILE.py:SERVER. Without a target, serve text generation with a model.",
    )
    host: str = Field("127.0.0.1", description="Address to bind to; 0.0.0.0 for all interfaces.")
    port: int = Field(8000, ge=0, le=65535, description="Port to bind to; 0 for any free port.")
    port_file: Path | None = Field(
        None, description="File to write the port number to when the server is ready."
    )
    model: Path | None = Field(
        None, description="Folder of a Hugging Face checkpoint; by default, a small bundled model."
    )
    device: str = Field("auto", description="Device for the model: auto, cpu, cuda, cuda:1, mps.")
    script: bool = Field(False, description="Add the test endpoint tidewire.script.")
    switch_interval: float = Field(
        SWITCH_INTERVAL,
        ge=0.00001,
        le=1,
        description="Python thread switch interval (`sys.setswitchinterval`). Shorter than Python's default of 0.005, so that "
        "computing synchronous functions do not delay streams.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum level logged to stderr: debug, info, warning or error."
    )
