"""Random and almost valid requests and configuration files: the server responds or refuses, and never fails.

The quick version takes a few seconds. In `make slow`, `FUZZ_SECONDS` is the time for each target.
"""

import contextlib
import json
import string
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import strategies as st
from starlette.testclient import TestClient

from support.fuzzing import fuzzed
from tidewire_server import Server
from tidewire_server.commands.configuration import ConfigurationError, configure
from tidewire_server.commands.flags import FIELDS
from tidewire_server.errors import ProblemError
from tidewire_server.http.host_check import HostCheck, is_loopback
from tidewire_server.jobs.admission.stream_tokens import StreamTokens
from tidewire_server.settings import Settings

# ---- requests ------------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=40)
VISIBLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300)
NUMBER = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["", "0", "1", "-0", "1e3", "00", "١", "NaN", "9" * 5000]),
)
CURSOR = st.one_of(
    st.tuples(NUMBER, st.sampled_from(["-", "", "--", ":"]), NUMBER).map("".join),
    st.sampled_from(["0-0", "0-1", "1-1", " 1-1 ", "1-1,1-1"]),
    VISIBLE,
)
TOKEN = st.one_of(st.text(string.ascii_letters + string.digits + "-_=+/", max_size=60), TEXT)
ACCEPT = st.lists(
    st.sampled_from(["*/*", "application/json", "text/event-stream", "text/html;q=0", ";", ",", "q"])
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
MEMBERS = (
    "input",
    "inputs",
    "shared",
    "on_disconnect",
    "deadline_ms",
    "grace_ms",
    "columns",
    "items",
    "metadata",
)
SUBMIT = st.one_of(
    st.dictionaries(st.one_of(st.sampled_from(MEMBERS), TEXT), JSON, max_size=4),
    st.fixed_dictionaries({"input": st.fixed_dictionaries({"n": JSON})}),
    JSON,
).map(lambda value: json.dumps(value).encode())
SPLICES = st.sampled_from(
    [b"", b"\xff", b"\x00", b'"', b"{", b"[" * 500, b"1e999", b"NaN", b"\\ud800", b"\xef\xbb\xbf"]
)


def spliced(parts: tuple[bytes, bytes, int]) -> bytes:
    body, splice, at = parts
    at %= len(body) + 1
    return body[:at] + splice + body[at:]


BODY = st.one_of(
    SUBMIT, st.tuples(SUBMIT, SPLICES, st.integers(0, 1000)).map(spliced), st.binary(max_size=200)
)

HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "accept": ACCEPT.map(", ".join),
        "authorization": VISIBLE,
        "content-type": st.sampled_from(
            ["application/json", "application/json; charset=latin-1", "text/plain", ""]
        ),
        "content-encoding": st.sampled_from(["gzip", "identity", ""]),
        "idempotency-key": VISIBLE,
        "last-event-id": CURSOR,
        "origin": VISIBLE,
    },
)
QUERY = st.dictionaries(
    st.sampled_from(["after", "diffs", "errors", "token", "min_interval_ms", "limit", "before", "x"]),
    st.one_of(NUMBER, CURSOR, TOKEN, st.sampled_from(["0", "1", "http", "inband"])),
    max_size=3,
)
PATH = st.one_of(
    st.sampled_from(
        [
            "/v1",
            "/v1/jobs",
            "/v1/jobs/JOB",
            "/v1/jobs/JOB/events",
            "/v1/jobs/JOB/cancel",
            "/v1/jobs/JOB/stream-token",
        ]
        + [
            "/v1/endpoints/double",
            "/v1/endpoints/double/jobs",
            "/v1/endpoints/x/jobs",
            "/healthz",
            "/readyz",
            "/metrics",
        ]
    ),
    st.text(string.printable.replace("?", "").replace("#", ""), max_size=30).map(
        lambda path: "/v1/jobs/" + quote(path)
    ),
)
METHOD = st.sampled_from(["GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT"])


@pytest.fixture(scope="module")
def client():
    server = Server(max_body_bytes=5_000, max_jobs_per_principal=100_000)

    @server.endpoint(concurrency_limit=None)
    async def double(n: int = 1) -> int:
        return 2 * n

    with TestClient(server.app, raise_server_exceptions=True) as client:
        yield client


@fuzzed(30)
def test_every_request_gets_a_response_of_the_protocol(client, fuzz):
    response = client.post("/v1/endpoints/double/jobs", json={"input": {}})
    job = response.json()["id"]
    client.get(f"/v1/jobs/{job}/events")  # until the job has ended

    def check(request) -> None:
        method, path, query, headers, body = request
        path = path.replace("JOB", job) if method != "DELETE" else path
        sent = {name: value.encode() for name, value in headers.items()}
        response = client.request(method, path, params=query, headers=sent, content=body)
        assert response.status_code < 500, response.text
        if response.status_code >= 400 and method != "HEAD":
            problem = response.json()
            assert response.headers["content-type"] == "application/problem+json"
            assert problem["status"] == response.status_code
            assert len(response.content) < 5_000
        assert client.get("/healthz").status_code == 200

    fuzz(st.tuples(METHOD, PATH, QUERY, HEADERS, BODY))(check)


@fuzzed(30)
def test_every_submit_body_is_accepted_or_refused(client, fuzz):
    def check(body: bytes) -> None:
        response = client.post(
            "/v1/endpoints/double/jobs", content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code in {201, 400, 413, 422}, response.text
        assert response.json()["status"] if response.status_code == 201 else response.json()["code"]

    fuzz(BODY)(check)


# ---- single parsers ------------------------------------------------------------------------------------------------


@fuzzed(30)
def test_no_forged_stream_token_is_accepted(fuzz):
    tokens = StreamTokens(b"k" * 32, 300)
    genuine, _ = tokens.make("job")

    def check(change) -> None:
        token, job, at, character = change
        for forged in (
            token,
            genuine[:at] + character + genuine[at + 1 :],
            genuine + character,
            genuine[:at],
        ):
            if (forged, job) != (genuine, "job"):
                with pytest.raises(ProblemError):
                    tokens.check(forged, job)

    fuzz(st.tuples(TOKEN, st.sampled_from(["job", "job2", ""]), st.integers(0, 42), st.characters()))(check)


@fuzzed(30)
def test_host_check_accepts_or_refuses_every_header(fuzz):
    check_headers = HostCheck(None, Settings(allowed_hosts=("gpu.example",)))._check
    piece = st.sampled_from(
        ["localhost", "gpu.example", "127.0.0.1", "[::1]", "[", "]", ":", ".", "@", "%", "80", "\x00"]
    )
    host = st.one_of(
        st.lists(piece, max_size=5).map("".join), st.text(st.characters(max_codepoint=255), max_size=50)
    )

    def check(values) -> None:
        host, origin = values
        headers = [(b"host", host.encode("latin-1")), (b"origin", origin.encode("latin-1"))]
        name = host.strip(" \t").lower().rpartition("@")[2]
        try:
            check_headers({"headers": headers, "http_version": "1.1"})
        except ProblemError:
            return
        assert name.startswith(("localhost", "gpu.example", "[")) or is_address(
            name.partition(":")[0].removesuffix(".")
        )
        assert origin.strip(" \t") in {
            f"http://{host.strip(chr(32) + chr(9)).lower()}",
            f"https://{host.lower()}",
        }

    fuzz(st.tuples(host, st.one_of(host.map("http://{}".format), TEXT.map(ascii))))(check)


def is_address(name: str) -> bool:
    return bool(name) and (is_loopback(name) or all(part.isdigit() for part in name.split(".")))


# ---- configuration -------------------------------------------------------------------------------------------------

VALUE = st.one_of(
    TEXT.map(json.dumps),
    NUMBER,
    st.sampled_from(
        ["true", "inf", "nan", "[]", '[""]', '["a b"]', "{}", "[[]]", "1979-05-27", '"none"', "0x1", "'"]
    ),
)
LINE = st.one_of(
    st.tuples(st.sampled_from(sorted(FIELDS)), VALUE).map(" = ".join),
    st.tuples(
        st.sampled_from(["[endpoints.x]", "[endpoints]", "[[endpoints]]", "[x.y]", "[", "#"]), TEXT
    ).map("".join),
    TEXT,
)


@fuzzed(30)
def test_every_configuration_file_is_accepted_or_refused(fuzz):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "some.toml")

        def check(content) -> None:
            path.write_bytes(content)
            with contextlib.suppress(ConfigurationError):
                configure({}, path)

        lines = st.lists(LINE, max_size=6).map(lambda lines: "\n".join(lines).encode("utf-8", "replace"))
        fuzz(st.one_of(lines, st.binary(max_size=100)))(check)


@pytest.mark.heavy
@fuzzed(30)
def test_every_token_file_is_accepted_or_refused(fuzz):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens.txt")

        def check(content) -> None:
            path.write_bytes(content)
            with contextlib.suppress(ConfigurationError):
                assert configure({"token_file": str(path)}).settings["tokens"]

        words = st.lists(st.text(string.printable, max_size=10), max_size=4).map(
            lambda words: "\n".join(words).encode()
        )
        fuzz(st.one_of(words, st.binary(max_size=40)))(check)
