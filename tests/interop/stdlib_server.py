"""A tidewire/1 server on the standard library. `python stdlib_server.py [RETRY_MS]` prints its URL."""

import hashlib, json, random, re, secrets, socketserver, sys, threading, time, urllib.parse, zlib  # noqa: E401, I001
from wsgiref.simple_server import WSGIServer, make_server

RETRY_MS, KEPT_S, PATH, TEXT = int((*sys.argv, 1000)[1]), 86_400, "/items/0/value", {"type": "string"}
LIMITS, BACKLOG = {"max_body_bytes": 65_536, "state_ttl_s": KEPT_S}, {"request_queue_size": 128}
RULES = {"text": TEXT, "delay_ms": {"type": "integer", "minimum": 0, "maximum": 10_000}}
INPUT = {"type": "object", "properties": RULES, "required": ["text"], "additionalProperties": False}
WORDS = {"name": "words", "input_schema": INPUT, "value_schema": TEXT, "capabilities": {"streams": True}}
WORDS["examples"] = [{"text": "one word after the other", "delay_ms": 150}]
ABSENT = {"inputs", "shared", "on_disconnect", "grace_ms", "deadline_ms"}  # need capabilities
HELLO, jobs, changed = {"protocol": "tidewire/1", "heartbeat_ms": 15_000}, {}, threading.Condition()
ABOUT = {**HELLO, "server": "stdlib", "durability": "process", "capabilities": [], "limits": LIMITS}
ABOUT |= {"endpoints": [{"name": "words", "href": "/v1/endpoints/words"}]}
STREAM, TIME = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}, "%Y-%m-%dT%H:%M:%SZ"


def words(text, delay_ms=0):  # any generator of strings works here
    for word in re.findall(r"\s*\S+|\s+$", text):
        yield word
        time.sleep(delay_ms / 1000)


def dump(value):  # equals the RFC 8785 form if no number has a fraction
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def event(data, **fields):
    return "".join(f"{name}:{fields[name]}\n" for name in fields).encode() + b"data:%b\n\n" % dump(data)


class Job:  # has one text item; log index i has the id 1-(i+1); all jobs share one lock
    def __init__(self, pieces):
        self.id, self.created = secrets.token_urlsafe(16), time.strftime(TIME, time.gmtime())
        self.log, self.unchecked, self.done, self.item = [], 0, None, {"status": "queued", "value": ""}
        self.state = {"status": "queued", "items": [self.item], "usage": {}, "notes": []}
        self.whole = {"state": self.state, "columns": [PATH]}
        self.commit(self.whole | {"reason": "start"}, event="snapshot")
        self.state["status"] = self.item["status"] = "running"
        self.commit([["s", "/status", "running"], ["s", "/items/0/status", "running"]])
        threading.Thread(target=self.run, args=[pieces], daemon=True).start()

    def commit(self, data, **fields):
        if isinstance(data, list) and self.unchecked:  # ops after appended text carry its check
            check = [PATH, len(self.item["value"]), zlib.crc32(self.item["value"].encode())]
            data, self.unchecked = {"ops": data, "check": [check]}, 0
        with changed:
            self.log.append(event(data, id=f"1-{len(self.log) + 1}", **fields))
            changed.notify_all()

    def run(self, pieces):
        for piece in pieces:
            with changed:
                if not self.done:
                    self.item["value"], self.unchecked = self.item["value"] + piece, self.unchecked + 1
                    self.commit(piece if self.unchecked < 64 else [["a", PATH, piece]])
        self.end("succeeded")

    def end(self, status):
        with changed:
            if not self.done:
                self.item["status"] = status
                self.commit([["s", "/items/0/status", status]])
                digest = hashlib.sha256(dump([self.item])).hexdigest()[:16]
                self.done = {"status": status, "usage": {}, "check": [], "digest": digest}
                self.done["expires_at"] = time.strftime(TIME, time.gmtime(time.time() + KEPT_S))
                self.commit(self.done, event="done")

    def body(self):
        with changed:
            url, status = f"/v1/jobs/{self.id}", (self.done or self.state)["status"]
            body = {"id": self.id, "endpoint": "words", "batch": False, "attempt": 1, "status": status}
            body |= {"links": {"self": url, "events": f"{url}/events", "cancel": f"{url}/cancel"}}
            body |= {"state": self.state | {"status": status}, "columns": [PATH], "created_at": self.created}
            return body | {"cursor": f"1-{len(self.log)}", "done": self.done}

    def events(self, cursor):  # the table of section 4.2
        with changed:
            (epoch, seq), head, first = map(int, (cursor or "2-1").split("-")), len(self.log), b""
            if cursor != "0-0" and (epoch != 1 or seq > head):
                seq, reason = head - bool(self.done), {"reason": "rewound" if cursor else "compacted"}
                first = event(self.whole | reason, id=f"1-{seq}", event="snapshot")
        hello = HELLO | {"job": self.id, "events": f"/v1/jobs/{self.id}/events", "head": f"1-{head}"}
        yield event(hello, event="hello", retry=int(RETRY_MS * random.uniform(0.75, 1.5))) + first
        while not self.done or seq < len(self.log):
            with changed:
                changed.wait_for(lambda seq=seq: len(self.log) > seq, 15)
                news, seq = b"".join(self.log[seq:]), len(self.log)
            yield news or event({"head": f"1-{seq}"}, event="ping")


def app(environ, start):
    def send(status, body, pointer="", **headers):
        headers = {"Content-Type": "application/json", "Cache-Control": "no-store, no-transform", **headers}
        if isinstance(body, str):  # `body` is the code of a problem
            body = {"code": body, "title": body.replace("_", " "), "status": status, "pointer": pointer}
            headers["Content-Type"] = "application/problem+json"
        start(f"{status} -", [*headers.items()])
        return [dump(body)] if isinstance(body, dict) else body

    def follow(job, cursor="", **headers):
        known = [*query.get("diffs", ["1"]), *query.get("errors", ["http"]), *after[1:]] == ["1", "http"]
        if not known or not re.fullmatch(r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}|0-0|", cursor):
            return send(400, "bad_cursor" if known else "bad_parameter")
        if job.done and cursor == f"1-{len(job.log)}":
            return send(204, [])
        return send(200, job.events(cursor), **STREAM, **headers)

    def submit():
        given = (got := json.loads(body.decode(), parse_constant=int))["input"]
        if ABSENT & {*got} or dump(given["text"])[:1] != b'"' or given.get("delay_ms", 0) not in range(10001):
            raise TypeError
        job = Job(words(**given))
        jobs[job.id], headers = job, {"Location": f"/v1/jobs/{job.id}"}
        if "text/event-stream" in environ.get("HTTP_ACCEPT", ""):
            return follow(job, **headers, **{"Content-Location": f"/v1/jobs/{job.id}/events"})
        return send(201, job.body(), **headers)

    def cancel():
        if "items" in {**json.loads(body.decode() or "{}")}:
            raise TypeError
        return send(200 if job.done else 202, job.end("cancelled") or job.body())

    path, query = environ["PATH_INFO"], urllib.parse.parse_qs(environ["QUERY_STRING"])
    job, after = jobs.get(path[9:].split("/")[0]), query.get("after", [""])  # an empty value is absent
    body = environ["wsgi.input"].read(min(int(environ.get("CONTENT_LENGTH") or 0), 65_537))
    routes = {
        "/v1": ("GET", lambda: send(200, ABOUT)),
        "/v1/endpoints/words": ("GET", lambda: send(200, WORDS)),
        "/v1/endpoints/words/jobs": ("POST", submit),
        "/v1/jobs/*": ("GET", lambda: send(200, job.body())),
        "/v1/jobs/*/events": ("GET", lambda: follow(job, environ.get("HTTP_LAST_EVENT_ID") or after[0])),
        "/v1/jobs/*/cancel": ("POST", cancel),
    }
    gone = {"/v1/jobs/": "job_not_found", "/v1/endpo": "endpoint_not_found"}.get(job or path[:9], "not_found")
    method, answer = routes.get(path.replace(job.id, "*") if job else path, (None, lambda: send(404, gone)))
    try:
        if method not in {None, environ["REQUEST_METHOD"]}:
            return send(405, "method_not_allowed", Allow=method)
        return answer() if len(body) <= LIMITS["max_body_bytes"] else send(413, "body_too_large")
    except (TypeError, AttributeError, KeyError, ValueError) as error:  # ValueError: not JSON or not UTF-8
        found = re.match(rb'(?s)\s*\{.*"(inputs?|shared|items|on_disconnect|grace_ms|deadline_ms)"', body)
        wrong = (400, "malformed_body") if isinstance(error, ValueError) else (422, "invalid_input")
        return send(*wrong, f"/{found[1].decode()}" if found else "")


server = make_server("127.0.0.1", 0, app, type("", (socketserver.ThreadingMixIn, WSGIServer), BACKLOG))
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
