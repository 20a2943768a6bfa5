"""Settings of a server and of the command `tidewire serve`, with their defaults, bounds and descriptions.

A setting can be a keyword argument of `Server`, an environment variable such as `TIDEWIRE_MAX_BODY_BYTES`, or a line in
the configuration file of `tidewire serve` (see `commands/configuration.py`). Its name is the same in all three places.
The most common settings also have a flag (see `commands/flags.py`). Times are in seconds.
"""

import ipaddress
import math
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from tidewire.protocol.resources import Limits
from tidewire_server.principals import TokenPrincipals
from tidewire_server.setting_errors import settings_error
from tidewire_server.user_paths import file_of, user_path

MAX_SECONDS: Final = 1e10
"""Upper bound of every setting that is a time, in seconds: about 300 years. With a longer `state_ttl`, the expiry of a state
could be after the year 9999, which a timestamp cannot represent."""
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
ModelName = Annotated[str, Field(pattern=r"^[!-~]{1,256}$")]
"""Name of a model in requests to the OpenAI surface. The characters are limited, because URLs contain the name."""
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_ORIGIN: Final = re.compile(
    r"(?!http://.*:80$|https://.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?"
)
"""Matches an origin in the form in which browsers send it, in lower case and without a default port."""
KIB = 1024
MIB = KIB * KIB

SWITCH_INTERVAL: Final = 0.0005
"""Python's thread switch interval in seconds.

With Python's default of 0.005, functions in threads would delay streams.
"""


class Settings(BaseModel):
    """Settings of one server."""

    # Hide the values in validation errors, because errors are printed and logged, and some settings are secrets.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True)

    # ---- jobs --------------------------------------------------------------------------------------------------
    default_concurrency_limit: int | None = Field(
        1,
        ge=1,
        description="Maximum number of concurrent items of an endpoint that sets no limit itself.",
    )
    max_threads: Count = Field(
        40,
        description="Maximum number of worker threads for synchronous functions. All endpoints share them.",
    )
    max_queue_size: Count = Field(
        1000,
        description="Maximum number of waiting items of one endpoint. Additional jobs are rejected with 429.",
    )
    queue_interval: Seconds = Field(0.25, description="Minimum time between two updates of queue positions.")
    cancel_timeout: Seconds = Field(
        5.0,
        description="Time within which a cancelled function must return. Afterwards, its item ends anyway.",
    )
    shutdown_timeout: Seconds = Field(
        10.0,
        description="Time for which a shutdown waits for jobs to end. Afterwards, unfinished jobs fail with "
        "`worker_lost` if the log is in memory. Otherwise the next server runs them.",
    )
    min_grace: Seconds = Field(
        5.0,
        description="Minimum of the member `grace_ms` of a request, which discovery shows as `min_grace_ms`. A client "
        "sets this member to request that the server cancels the job after this time without a reader. A smaller value "
        "in a request is raised to the minimum.",
    )

    # ---- streams -----------------------------------------------------------------------------------------------
    heartbeat: float = Field(
        5.0,
        ge=0.001,
        le=300,
        description="Time without events after which the server sends a ping on a stream. A client notices a dead "
        "connection after 2.5 times this time.",
    )
    retry: float = Field(
        1.0,
        ge=0.001,
        le=60,
        description="Time that readers wait before they reconnect. Random jitter is added.",
    )
    merge_window: float = Field(
        0.005,
        ge=0,
        le=1,
        description="Time for which appends are collected and merged into one event. The starts and results of the items of "
        "a job are merged in the same way. With 0, each append is one event. Under load, the server uses up to 0.05 s.",
    )
    min_snapshot_interval: float = Field(
        0.25,
        ge=0.001,
        le=3600,
        description="Minimum time between two snapshots of a stream that was requested with `diffs=0`.",
    )
    stall_timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Time after which a stream is closed if its reader accepts no byte.",
    )

    # ---- limits ------------------------------------------------------------------------------------------------
    max_connections: Count = Field(
        5_000,
        description="Maximum number of open connections, including idle ones and streams. Additional connections get 503.",
    )
    keep_alive_timeout: int = Field(
        5, ge=1, le=3600, description="Time after which an idle connection is closed."
    )
    max_head_bytes: int = Field(
        64 * KIB, ge=KIB, description="Maximum size of a request's line and headers, in bytes."
    )
    head_timeout: float = Field(
        30.0, gt=0, le=3600, description="Time within which a request's line and headers must arrive."
    )
    max_body_bytes: Count = Field(8 * MIB, description="Maximum size of a request's body, in bytes.")
    max_incoming_bytes: Count = Field(
        256 * MIB,
        description="Maximum total size of all request bodies that are being received and processed, in bytes. "
        "Additional requests get 503, except for small requests that arrive in one piece. If no other body is arriving, "
        "a single body may exceed the limit.",
    )
    max_body_values: Count = Field(
        100_000,
        description="Maximum number of JSON values in a request's body, including member names. The members that all "
        "inputs of a job share count once for each input.",
    )
    body_timeout: float = Field(
        30.0, gt=0, le=3600, description="Time within which a request's body must arrive."
    )
    max_input_bytes: Count = Field(
        1024 * MIB,
        description="Maximum total size of the inputs of all unfinished jobs, in bytes. Additional jobs are rejected "
        "with 429. If no other job is unfinished, a job may exceed the limit.",
    )
    max_inputs: Count = Field(1024, description="Maximum number of inputs of one job.")
    max_jobs_per_principal: Count = Field(
        10_000, description="Maximum number of unfinished jobs per principal."
    )
    max_streams_per_principal: Count = Field(
        1_000, description="Maximum number of open streams per principal."
    )
    max_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Maximum fraction of `max_queue_size`, `max_input_bytes`, `max_incoming_bytes`, `max_unsent_bytes` and "
        "`max_threads` that one caller may use, and of `max_connections` that one client address may use. With 1 or with "
        "`single_user`, there is no such limit. If the tokens belong to only one principal, the limit applies only to connections.",
    )
    max_state_bytes: int = Field(
        16 * MIB, ge=KIB, description="Maximum size of one job's state as JSON, in bytes."
    )
    max_event_bytes: int = Field(
        MIB,
        ge=KIB,
        description="Maximum size of one event, in bytes. A larger change is sent as a snapshot, which may be larger.",
    )
    max_event_ops: int = Field(
        10_000, ge=64, le=10_000, description="Maximum number of ops of one diff. Longer diffs are split."
    )
    max_log_bytes: int = Field(
        8 * MIB,
        ge=KIB,
        description="Maximum size of one job's log, in bytes. If it is exceeded, the oldest events are trimmed.",
    )

    max_unsent_bytes: Count = Field(
        512 * MIB,
        description="Maximum total size of the states, events and lists of jobs that clients have not read completely, in bytes. "
        "Data that several clients read counts once. Above this limit, the server refuses requests for such data with 503, and "
        "ends streams with `goaway`.",
    )

    # ---- retention ---------------------------------------------------------------------------------------------
    log_ttl: Seconds = Field(600.0, description="Time for which an ended job's events can be replayed.")
    state_ttl: Seconds = Field(3600.0, description="Time for which an ended job's state is stored.")
    tombstone_ttl: Seconds = Field(
        86_400.0, description="Time for which the server responds to requests for a deleted job with 410."
    )
    idempotency_ttl: Seconds = Field(86_400.0, description="Time for which an Idempotency-Key is stored.")
    max_retained_jobs: Count = Field(
        20_000,
        description="Maximum number of ended jobs that are stored. If it is exceeded, the oldest jobs of the caller "
        "with the most stored jobs expire early.",
    )
    max_retained_bytes: Count = Field(
        1024 * MIB,
        description="Maximum total size of the states and events of ended jobs that are stored, in bytes. If it is "
        "exceeded, the oldest jobs of the caller with the most bytes expire early. The job that ended last is always "
        "stored, even if it alone exceeds the limit.",
    )
    max_tombstones: Count = Field(
        100_000,
        description="Maximum number of tombstones, which are stored for deleted jobs, and maximum number of idempotency keys. "
        "If there are more tombstones, the oldest tombstones expire early. If there are more keys, the oldest keys of "
        "the caller with the most keys expire early.",
    )

    # ---- the log -----------------------------------------------------------------------------------------------
    log: str = Field(
        "memory",
        repr=False,  # the URL may contain a password
        description="Store of jobs: memory, sqlite:///PATH (absolute: sqlite:////PATH), or postgresql://HOST/NAME.",
    )
    log_fsync: bool = Field(
        False,
        description="Sync each commit to a log file to the disk. This is slower, but nothing is lost in a power failure. A "
        "database always does this.",
    )
    store_outage_timeout: float = Field(
        60.0,
        ge=2,
        le=86_400,
        description="Time for which functions continue while the database cannot be reached. Afterwards, they are cancelled, and "
        "`on_restart` decides how their jobs continue when the database is available again. Only for a log in a database.",
    )
    max_attempts: Count = Field(
        10,
        description="A job fails with `worker_lost` after the server has crashed this number of times while running it.",
    )

    # ---- development -------------------------------------------------------------------------------------------
    debug: bool = Field(
        False,
        description="Send tracebacks to the callers. A server with this setting refuses to start on "
        "an address that other machines can reach.",
    )

    # ---- access and address -------------------------------------------------------------------------------------
    tokens: tuple[str, ...] = Field(
        (),
        repr=False,
        description="Accepted bearer tokens, each as TOKEN or PRINCIPAL:TOKEN. Without tokens, every client has "
        "access.",
    )
    operator_tokens: tuple[str, ...] = Field(
        (),
        repr=False,
        description="Bearer tokens with access to /metrics. If there are `tokens` but no `operator_tokens`, nobody can "
        "read /metrics.",
    )
    principal_timeout: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="Time that an async function `principal` of the server may take for one request. Afterwards, the "
        "request gets 500.",
    )
    allow_anonymous: bool = Field(
        False,
        description="Serve other machines without tokens. If false, a server without `tokens` refuses to start on an "
        "address that other machines can reach.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Host names of this server. Add the name of a proxy here. A request with another name in the Host "
        "header gets 421. The name localhost and IP addresses are always allowed. By default, the header is checked "
        "only on loopback connections of a server without `tokens`. * turns off the checks of the headers Host and "
        "Origin.",
    )
    single_user: bool | None = Field(
        None,
        description="Treat all callers as one user. This user may list all jobs. If false, an anonymous caller may "
        "use only the jobs whose ids it knows, and limits count per client address. The default `none` means true if "
        "the server listens on a loopback address and `forwarded_allow_ips` is empty. In all other cases, and if "
        "another ASGI server runs the application, `none` means false. With tokens, this setting has no effect.",
    )
    forwarded_allow_ips: tuple[str, ...] = Field(
        (),
        description="IP addresses and networks of the proxies whose header `X-Forwarded-For` contains the client's "
        "address. By default, the header is ignored.",
    )
    stream_token_secret: str | None = Field(
        None,
        min_length=32,
        repr=False,
        description="Key that signs stream tokens, with at least 32 characters. Use the same key in all processes "
        "behind one address. By default, a key is generated once per log file or database, or at each start if the log is in "
        "memory.",
    )
    stream_token_ttl: float = Field(
        300.0,
        ge=1,
        le=3600,
        description="Time for which a stream token is valid. When it expires, the stream that was opened with it ends.",
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="Origins whose pages may call this server, each as scheme://host[:port]; * for any origin, without credentials. By default "
        "there is no such origin.",
    )
    served_model_names: tuple[ModelName, ...] = Field(
        (),
        description="Aliases of the model of `generate`. Requests to `/openai/v1` may use them in place of the model's name.",
    )
    root_path: str = Field(
        "", pattern=r"^(/[^/?#]+)*$", description="Path prefix of this server behind a proxy."
    )
    page: bool = Field(
        True,
        description="Serve a web page at `/`, on which people can call the endpoints. Its files are public and contain no data "
        "of this server. With `tokens`, the page asks the user for a token.",
    )

    @field_validator("log")
    @classmethod
    def _check_log(cls, log: str) -> str:
        file_of(log)
        return log

    @field_validator("tokens", "operator_tokens")
    @classmethod
    def _check_tokens(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        TokenPrincipals(tokens)
        return tokens

    @field_validator("operator_tokens")
    @classmethod
    def _check_operator_tokens(cls, tokens: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        shared = TokenPrincipals(info.data.get("tokens", ())).sharing_token(TokenPrincipals(tokens))
        if shared is not None:
            raise ValueError(
                f"a token of an operator is also that of principal {shared!r} in `tokens`, who could then read the "
                "metrics of all callers; use another token"
            )
        return tokens

    @field_validator("allowed_hosts")
    @classmethod
    def _check_allowed_hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name != "*" and not _HOST_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is neither a host name such as gpu.example.org, without scheme, port or wildcard, nor *"
                )
        return names

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is neither an origin such as https://app.example.com:8443, in lower case, without path, "
                    "wildcard or default port, nor *"
                )
        return origins

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _check_proxies(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for each in proxies:
            ipaddress.ip_network(each)
        return proxies

    def is_single_user(self, *, on_loopback: bool) -> bool:
        """Return whether all callers are treated as one user. `on_loopback` must be true if the server listens on a loopback
        address.
        """
        if self.tokens:
            return False
        if self.single_user is None:
            return on_loopback and not self.forwarded_allow_ips
        return self.single_user

    def caller_share(self, *, single_user: bool) -> float:
        """Return the fraction of each shared resource that one caller may use. It is 1 if there is only one caller."""
        only_caller = single_user or len(TokenPrincipals(self.tokens).names) == 1
        return 1.0 if only_caller else self.max_share

    @property
    def limits(self) -> Limits:
        """Limits that the server reports in discovery."""
        own = self.model_dump(include=set(Limits.__struct_fields__))
        ttls = {
            f"{name}_s": math.ceil(getattr(self, name)) for name in ("log_ttl", "state_ttl", "tombstone_ttl")
        }
        return Limits(**own, **ttls, min_grace_ms=math.ceil(1000 * self.min_grace))

    def replace(self, **changes: Any) -> "Settings":
        """Return a validated copy of the settings in which some values are changed.

        Raises:
            SettingsError: A name is unknown, or a value is not valid.
        """
        try:
            return Settings(**(self.model_dump() | changes))
        except ValidationError as error:
            raise settings_error(error, Settings.model_fields) from None


def share_of(total: int, share: float) -> int:
    """Return `total * share`, rounded down, but at least 1 unless `total` is 0."""
    return min(total, max(1, int(total * share)))


class Launch(BaseModel):
    """Settings of the `tidewire serve` process, in addition to the settings of its server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str | None = Field(
        None,
        description="Server to run, as FILE.py or MODULE. If there are several servers, name one, as FILE.py:SERVER or "
        "MODULE:SERVER. Without a target, serve text generation with a model.",
    )
    host: str = Field("127.0.0.1", description="Address to bind to; 0.0.0.0 for all interfaces.")
    port: int = Field(8000, ge=0, le=65535, description="Port to bind to; 0 for any free port.")
    uds: Path | None = Field(
        None,
        description="Unix domain socket to bind to. It replaces `host` and `port`. Only the user who runs the server "
        "can connect.",
    )
    token_file: Path | None = Field(
        None, description="File with one accepted token per line. Set either this or `tokens`."
    )
    operator_token_file: Path | None = Field(
        None,
        description="File with tokens for /metrics. It has one token per line. Set either this or `operator_tokens`.",
    )
    port_file: Path | None = Field(None, description="File to write the port number to when ready.")
    model: str | None = Field(
        None,
        min_length=1,
        description="Checkpoint folder, or name at the upstream. By default, a small bundled model, or the only model of the "
        "upstream. The folder has the format of Hugging Face.",
    )
    upstream: tuple[str, ...] = Field(
        (),
        description="URL of an OpenAI-compatible engine. The engine generates the texts, for example at "
        "http://127.0.0.1:8001/v1. Several URLs share the load.",
    )
    upstream_kind: Literal["auto", "vllm", "sglang", "tgi", "llama.cpp", "transformers", "openai"] = Field(
        "auto", description="Kind of the upstream; openai for any other, auto to ask it."
    )
    upstream_key: str | None = Field(
        None,
        pattern=r"^[\x21-\x7e]+$",
        repr=False,
        description="Bearer token that the server sends to the upstream.",
    )
    upstream_key_file: Path | None = Field(
        None, description="File with the bearer token for the upstream. Set either this or `upstream_key`."
    )
    upstream_concurrency: int = Field(
        64, ge=1, le=4096, description="Number of requests that one upstream URL processes at the same time."
    )
    upstream_timeout: float = Field(
        300.0,
        ge=1,
        le=86_400,
        description="Time without a received byte after which a request to the upstream fails.",
    )
    tokenizer: Path | None = Field(
        None,
        description="Folder with the tokenizer.json of the upstream's model. Log-probabilities need it.",
    )
    device: str = Field("auto", description="Device for the model: auto, cpu, cuda, cuda:1, mps.")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = Field(
        "auto",
        description="Number type of the weights and the cache. With auto, the type is float32 on a CPU, and otherwise "
        "the type in which the checkpoint was trained.",
    )
    slots: int = Field(
        16, ge=1, le=1024, description="Number of texts generated at the same time. Additional requests wait."
    )
    context: int | None = Field(
        None,
        ge=128,
        description="Maximum number of tokens of prompt and generated text together. The default is the model's "
        "maximum, or less if the cache would need more than 4 GiB.",
    )
    max_top_logprobs: int = Field(20, ge=0, le=64, description="Maximum of the input member `top_logprobs`.")
    max_num_beams: int = Field(
        8,
        ge=1,
        le=64,
        description="Maximum of the input member `num_beams`. A beam search needs as many slots. 1 disables beam search.",
    )
    max_schema_bytes: int = Field(
        8192,
        ge=256,
        le=64 * KIB,
        description="Maximum size of the input member `json_schema` as compact JSON, in bytes. Its other limits are fixed.",
    )
    max_mask_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Maximum fraction of the time of engine steps that the masks of one text with a `json_schema` may take. "
        "Above it, the text fails. Only steps that the text shares with other texts count. 1 for no limit.",
    )
    on_restart: Literal["auto", "rerun", "fail", "continue"] = Field(
        "auto",
        description="How the server treats texts that were being generated when it stopped, unless the log is in memory: rerun "
        "from the start, continue after the logged tokens, or fail with worker_lost. auto means continue. If the log is in "
        "memory, auto also omits token ids that the request did not ask for.",
    )
    share_prefixes: bool = Field(
        False,
        description="Reuse the keys and values of a prompt for the prompts of all callers that begin with the same tokens. "
        "By default, only prompts of the same caller share them, because the time until the first token shows whether a "
        "prompt was processed before. Turn this on only if the callers trust each other.",
    )
    profile: Path | None = Field(
        None, description="Folder for profiles of some steps of the text engine. It is created if necessary."
    )
    reload: bool = Field(
        False,
        description="Restart when a Python file changes, for development. Watches the folder of the target.",
    )
    no_functions: bool = Field(
        False,
        description="Only answer requests, and run no functions. `tidewire worker` runs them. Needs a log in a database.",
    )
    script: bool = Field(False, description="Add the endpoint tidewire.script. It is meant for tests.")
    switch_interval: float = Field(
        SWITCH_INTERVAL,
        ge=0.00001,
        le=1,
        description="Python's thread switch interval (`sys.setswitchinterval`). The default is shorter than Python's "
        "own (0.005), so that synchronous functions do not delay streams while they compute.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum level of messages logged to stderr: debug, info, warning or error."
    )
    log_format: Literal["text", "json"] = Field(
        "text",
        description="Format of the log on stderr: text, or json with one object per line, which contains the id of the job.",
    )

    @field_validator(
        "uds", "token_file", "operator_token_file", "upstream_key_file", "tokenizer", "port_file", "profile"
    )
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        return None if path is None else user_path(path)
