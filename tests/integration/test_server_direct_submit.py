"""Requests to submit a job pass neither Starlette's router nor its exception middleware, except under a path prefix.

Both ways must give the same responses, so each request is sent to a server with a prefix and to one without.
"""

import re

import pytest

from support.reference_server import JSON, QUICK, STREAM, serving
from tidewire_server import Server

PAGE = "https://app.example.com"
SUBMIT = "/v1/endpoints/say/jobs"
AUTH = {"authorization": "Bearer sesame"}
KEYED = {"idempotency-key": "k"}
BODY = b'{"input": {"text": "hi"}}'

PLAIN = {"cors": False, "tokens": False}
GUARDED = {"cors": True, "tokens": True}

REQUESTS = [
    ("POST", SUBMIT, JSON, BODY, 201),
    ("POST", SUBMIT, STREAM, BODY, 200),
    ("POST", SUBMIT, JSON | KEYED, BODY, 201),
    ("POST", SUBMIT, JSON | KEYED, BODY, 201),
    ("POST", SUBMIT, JSON | KEYED, b'{"input": {"text": "other"}}', 422),
    ("POST", SUBMIT, JSON | {"idempotency-key": "a b"}, BODY, 400),
    ("POST", SUBMIT, JSON, b'{"input": {"text": 1}}', 422),
    ("POST", SUBMIT, STREAM, b"{", 400),
    ("POST", SUBMIT, JSON, b'{"input": {"text": "' + b"x" * 3000 + b'"}}', 413),
    ("POST", SUBMIT, JSON | {"content-type": "text/plain"}, BODY, 415),
    ("POST", SUBMIT, {"accept": "text/html"}, BODY, 406),
    ("POST", f"{SUBMIT}?x=1", JSON, BODY, 201),
    ("POST", f"{SUBMIT}/", JSON, BODY, 404),
    ("POST", f"{SUBMIT}%0A", JSON, BODY, None),
    ("POST", "/v1/endpoints/s%61y/jobs", JSON, BODY, 201),
    ("POST", "/v1/endpoints/a%2Fb/jobs", JSON, BODY, 404),
    ("POST", "/v1/endpoints/nothing/jobs", JSON, BODY, 404),
    ("POST", "/v1/endpoints/broken/jobs", JSON, BODY, 500),
    ("GET", SUBMIT, JSON, b"", 405),
    ("PUT", SUBMIT, JSON, BODY, 405),
    ("OPTIONS", SUBMIT, {"access-control-request-method": "POST"}, b"", 204),
    ("POST", SUBMIT, JSON | {"origin": "https://evil.example"}, BODY, None),
    ("POST", SUBMIT, JSON | {"host": "evil.example"}, BODY, None),
    ("POST", SUBMIT, JSON | {"authorization": "Bearer wrong"}, BODY, None),
]


def make_server(root_path: str, *, cors: bool, tokens: bool) -> Server:
    server = Server(
        **QUICK,
        root_path=root_path,
        max_body_bytes=2000,
        cors_origins=(PAGE,) if cors else (),
        tokens=("me:sesame",) if tokens else (),
    )

    @server.endpoint
    async def say(text: str) -> str:
        return text

    def fail(_input: object) -> None:
        raise RuntimeError("a bug in validate")

    @server.endpoint(validate=fail)
    async def broken(text: str) -> str:
        return text

    return server


def comparable(response, prefix: str) -> tuple[int, list[tuple[str, str]], str]:
    """Return the parts of a response that must be equal, without the prefix, and without ids, times and random numbers."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name != "date"]
    text = response.text.replace(prefix, "") if prefix else response.text
    for pattern in (r"[0-9a-f]{32}", r"\d{4}-\d\d-\d\dT[\d:.]+Z", r"(?<=retry:)\d+"):
        text = re.sub(pattern, "…", text)
        headers = [(name, re.sub(pattern, "…", value)) for name, value in headers]
    headers = [(name, value.replace(prefix, "") if prefix else value) for name, value in headers]
    return response.status_code, [each for each in headers if each[0] != "content-length"], text


@pytest.mark.parametrize("options", [PLAIN, GUARDED], ids=["plain", "guarded"])
def test_a_direct_submit_gets_the_response_of_the_router(options):
    answers = {}
    for prefix in ("", "/under"):
        with serving(make_server(prefix, **options)) as peer:
            found = []
            for method, url, headers, body, _ in REQUESTS:
                sent = AUTH | {"content-type": "application/json", "origin": PAGE} | headers
                if not options["cors"] and headers.get("origin") is None:
                    del sent["origin"]
                response = peer.http.request(method, url, headers=sent, content=body)
                found.append(comparable(response, prefix))
            answers[prefix] = found
    for request, direct, routed in zip(REQUESTS, answers[""], answers["/under"], strict=True):
        assert direct == routed, request
        if request[4] is not None:
            assert direct[0] == request[4], request
