"""Requests, responses and backoff of the plain client, as the specification describes them."""

import http.client
import json
import random
import secrets
import time
from typing import Any
from urllib.parse import urljoin, urlsplit

PROTOCOL = "tidewire/1"


class CutError(Exception):
    """The connection failed, so the client must reconnect."""

    def __init__(self, why: str, *, min_wait: float = 0.0, counts: bool = True, spread: float = 1.0) -> None:
        super().__init__(why)
        self.min_wait, self.counts, self.spread = min_wait, counts, spread


class EndError(Exception):
    """The command has ended. The attribute `report` contains the client's final report."""

    def __init__(self, end: str, **members: Any) -> None:
        super().__init__(end)
        self.report = {"end": end, **members}


def read_id(job: Any) -> Any:
    return job.get("id") if isinstance(job, dict) else None


class Response:
    """A response whose body may not have arrived completely."""

    def __init__(self, connection: http.client.HTTPConnection, response: Any, sock: Any, url: str) -> None:
        self.connection, self.response, self.sock, self.url = connection, response, sock, url
        self.status, self.headers = response.status, response.headers

    def is_stream(self) -> bool:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        coding = self.headers.get("Content-Encoding", "identity").lower()
        return self.status == 200 and kind == "text/event-stream" and coding == "identity"

    def read(self, seconds: float) -> bytes:
        self.sock.settimeout(max(seconds, 0.001))
        try:
            return self.response.read1(65536)
        except (OSError, http.client.HTTPException) as error:
            raise CutError(f"{type(error).__name__}: {error}") from None

    def json(self) -> Any:
        try:
            return json.loads(self.response.read())
        except (ValueError, OSError, http.client.HTTPException):
            return None

    def peek(self) -> bytes:
        """Return the received part of the body without consuming it."""
        return bytes(self.response.peek(65536))

    def close(self) -> None:
        self.response.close()
        self.connection.close()


class PlainRequests:
    command: dict[str, Any]
    base: str
    until: float
    """Deadline of the command on the monotonic clock."""
    credentials: list[str]
    responses: list[Response]
    retry: float
    failures: int
    job: str
    stream_url: str
    response_timeout = 10.0
    longest_wait = 3600.0

    def request(
        self, method: str, url: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        refreshed, redirects = False, 0
        while True:
            response = self.send(method, url, headers or {}, body)
            if response.status in {401, 403} and not refreshed and len(self.credentials) > 1:
                refreshed = True
                self.credentials.pop(0)
            elif response.status in {301, 302, 303, 307, 308}:
                there = urljoin(url, response.headers.get("Location", ""))
                redirects += 1
                self.judge_redirect(method, there, redirects)
                url = there
            else:
                return response
            response.close()

    def judge_redirect(self, method: str, there: str, redirects: int) -> None:
        if method != "GET" or urlsplit(there)[:2] != urlsplit(self.base)[:2] or redirects > 5:
            raise EndError("refused", status=307, detail="the client does not follow this redirect")

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes | None) -> Response:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=self.at_most(self.response_timeout))
        if self.credentials and self.is_same_origin(url):
            headers = {**headers, "Authorization": f"Bearer {self.credentials[0]}"}
        try:
            connection.putrequest(
                method, parts.path + (f"?{parts.query}" if parts.query else ""), skip_accept_encoding=True
            )
            if body is not None:
                headers = {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            sock = connection.sock
            response = Response(connection, connection.getresponse(), sock, url)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise CutError(f"{type(error).__name__}: {error}") from None
        self.responses.append(response)
        return response

    def is_same_origin(self, url: str) -> bool:
        return urlsplit(url)[:2] == urlsplit(self.base)[:2]

    def refuse(self, response: Response) -> None:
        problem = response.json()
        members = {"problem": problem} if isinstance(problem, dict) else {}
        raise EndError("refused", status=response.status, **members)

    def retry_after(self, response: Response) -> float:
        value = response.headers.get("Retry-After", "")
        return float(value) if value.isascii() and value.isdigit() else 0.0

    def submit(self) -> Response | None:
        inputs = {name: self.command[name] for name in ("input", "inputs") if name in self.command}
        body = json.dumps(inputs).encode()
        headers = {"Idempotency-Key": secrets.token_urlsafe(16), **self.submit_headers()}
        while True:
            try:
                response = self.request("POST", f"{self.base}/v1/endpoints/demo/jobs", headers, body)
            except CutError as cut:
                if not self.may_repeat():
                    raise EndError("connection_error", detail=str(cut)) from None
                self.fail(cut)
                continue
            if response.status in {200, 201}:
                if not response.is_stream() and not read_id(response.json()):
                    raise EndError("protocol_error", detail="the response to the submit is not a job")
                self.job = urlsplit(response.headers["Location"]).path.rpartition("/")[2]
                self.stream_url = f"{self.base}/v1/jobs/{self.job}/events"
                if response.is_stream():
                    return response
                response.close()
                return None
            wait = self.retry_after(response)
            if response.status not in {408, 409, 429, 503}:
                self.refuse(response)
            response.close()
            self.fail(CutError(str(response.status), min_wait=wait, counts=not wait))

    def submit_headers(self) -> dict[str, str]:
        return {"Accept": "text/event-stream", "Accept-Encoding": "identity"}

    def may_repeat(self) -> bool:
        if self.credentials:
            return True
        while True:
            try:
                response = self.request("GET", f"{self.base}/v1")
            except CutError as cut:
                self.on_failed_discovery(cut)
                continue
            found = response.json()
            response.close()
            if response.status < 500:
                return isinstance(found, dict) and "idempotency" in found.get("capabilities", ())
            self.on_failed_discovery(CutError(f"a response {response.status}"))

    def on_failed_discovery(self, cut: CutError) -> None:
        self.fail(cut)

    # ---- time --------------------------------------------------------------------------------------------------

    def at_most(self, seconds: float) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(seconds, left)

    def sleep(self, seconds: float) -> None:
        left = self.until - time.monotonic()
        time.sleep(max(0.0, min(seconds, left)))
        if seconds > left:
            raise TimeoutError

    def fail(self, cut: CutError) -> None:
        """Wait before the next attempt, or give up after too many consecutive failures."""
        wait = 0.0
        if cut.counts:
            self.failures += 1
            if self.failures > self.command.get("attempts", 1000):
                raise EndError("connection_error", detail=str(cut))
            wait = self.backoff(self.failures)
        if cut.min_wait > self.longest_wait:
            raise EndError("connection_error", detail=f"the server asked to wait {cut.min_wait:g} s")
        self.sleep(max(wait, cut.min_wait * random.uniform(1.0, 1.5)))

    def backoff(self, failures: int) -> float:
        return min(30.0, self.retry * 2 ** (failures - 1)) * random.uniform(0.5, 1.5)
