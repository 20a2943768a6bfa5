"""Plain reader of event streams: a correct client of the profile `sse`, written from the WHATWG standard alone.

Each rule is a method or an attribute, so a faulty reader overrides one of them.
"""

import codecs
import http.client
import re
import threading
import time
from urllib.parse import urljoin, urlsplit

from tidewire_conformance.clients.scenarios import AdapterDiedError, AdapterHungError

REDIRECTS = {301, 302, 307, 308}


class PlainEventStreamReader:
    """Requests a stream, reports its events, and reconnects until a response is not an event stream."""

    accept = "text/event-stream"
    encoding = "utf-8"
    encoding_errors = "replace"
    line_end = re.compile(r"\r\n|\r|\n")
    redirects = REDIRECTS
    final_ends = frozenset({"closed", "failed"})

    def __init__(self, url, say):
        self.url, self.say = url, say
        self.last_id, self.retry = "", None
        self.id = ""
        self.fields = {}

    # ---- connections -----------------------------------------------------------------------------------------------

    def run(self):
        """Follow the stream and return the members of the last report."""
        number, url = 0, self.url
        while True:
            status, location = self.connect(url)
            if status in self.redirects:
                url = urljoin(url, location)
                continue
            if not self.reconnects(status, number):
                return {"end": "closed", "last_event_id": self.last_id, "retry_ms": self.retry}
            number, url = number + 1, self.url
            self.wait()

    def reconnects(self, status, number):
        return status == 200

    def wait(self):
        time.sleep((10 if self.retry is None else min(self.retry, 3000)) / 1000)

    def headers(self):
        found = {"Accept": self.accept} if self.accept else {}
        return found | ({"Last-Event-ID": self.last_id.encode()} if self.last_id else {})

    def accepts(self, status, media_type):
        return status == 200 and media_type.partition(";")[0].strip().lower() == "text/event-stream"

    def connect(self, url):
        """Read one response. The status is 0 if the response is not an event stream."""
        where = urlsplit(url)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=10)
        try:
            connection.request("GET", where.path, headers=self.headers())
            with connection.getresponse() as response:
                return self.read(response)
        finally:
            connection.close()

    def read(self, response):
        if response.status in self.redirects:
            return response.status, response.headers["Location"]
        media_type = response.headers.get("Content-Type", "")
        if not self.accepts(response.status, media_type):
            return self.refused(response.status), ""
        self.begin(media_type)
        try:
            while chunk := response.read1(65536):
                self.feed(chunk)
        except (http.client.HTTPException, OSError):
            return self.lost(), ""
        self.finish()
        return 200, ""

    def refused(self, status):
        return 0

    def lost(self):
        return 200

    # ---- decoder ---------------------------------------------------------------------------------------------------

    def begin(self, media_type):
        self.decoder = codecs.getincrementaldecoder(self.encoding)(self.encoding_errors)
        self.at_start, self.after_cr, self.text = True, False, ""
        self.id, self.fields = self.last_id, {}

    def feed(self, chunk):
        text = self.decoder.decode(chunk)
        if not text:
            return
        if self.at_start:
            self.at_start, text = False, self.without_mark(text)
        if self.after_cr and text:
            self.after_cr, text = False, text.removeprefix("\n")
        self.text += text
        *lines, self.text = self.line_end.split(self.text)
        self.after_cr = text.endswith("\r")
        for line in lines:
            self.line(line) if line else self.dispatch()

    def without_mark(self, text):
        return text.removeprefix("\ufeff")

    def finish(self):
        pass

    def line(self, line):
        if line.startswith(":"):
            return
        name, _, value = line.partition(":")
        self.field(name, self.value(value))

    def value(self, text):
        return text.removeprefix(" ")

    def field(self, name, value):
        if name == "data":
            self.fields["data"] = f"{self.fields['data']}\n{value}" if "data" in self.fields else value
        elif name == "event":
            self.fields["event"] = value
        elif name == "id":
            self.set_id(value)
        elif name == "retry":
            self.set_retry(value)

    def set_id(self, value):
        if "\0" not in value:
            self.id = value

    def set_retry(self, value):
        if re.fullmatch("[0-9]+", value):
            self.retry = int(value)

    def dispatch(self):
        self.last_id = self.id
        fields, self.fields = self.fields, {}
        if self.has_event(fields):
            self.report(fields.get("event") or "message", fields.get("data", ""))

    def has_event(self, fields):
        return "data" in fields

    def report(self, kind, data):
        self.say({"saw": "event", "type": kind, "data": data, "last_event_id": self.last_id})


class EventStreamReaderAdapter:
    """Runs a reader in this process. Implements the scenario player's protocol `Adapter`."""

    traits = frozenset({"types", "ids", "retry", "reconnect"})

    def __init__(self, reader=PlainEventStreamReader):
        self.reader, self.name = reader, reader.__name__

    def run(self, command, on_report, seconds):
        until = time.monotonic() + seconds

        def say(report):
            if time.monotonic() > until:
                raise TimeoutError
            on_report({"id": command["id"], **report})

        reader, result = self.reader(command["url"], say), {}

        def follow():
            try:
                result["end"] = reader.run()
            except Exception as error:
                result["error"] = error

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive() or isinstance(result.get("error"), TimeoutError):
            raise AdapterHungError
        if "error" in result:
            raise AdapterDiedError(f"the reader raised {result['error']!r}")
        on_report({"id": command["id"], **result["end"]})
