"""Prometheus metrics of a server, which `GET /metrics` returns. Process metrics are not included."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from tidewire.protocol.messages import JobEnd

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """Prometheus metrics of one server.

    Hot paths count in plain integers, because Prometheus counters are slower. The integers are added to the Prometheus
    counters when the metrics are read.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.streamed = 0
        """Number of bytes of event streams that were sent but are not yet added to `streamed_bytes`."""
        self._measured: list[tuple[Gauge, Callable[[], Iterable[tuple[str, float]]]]] = []
        self._added: defaultdict[tuple[Counter, tuple[str, ...]], int] = defaultdict(int)
        self.jobs_submitted = self._counter("jobs_submitted", "Jobs accepted and stored.", "endpoint")
        self.jobs_started = self._counter("jobs_started", "Jobs whose first item has started.", "endpoint")
        self.jobs_ended = self._counter(
            "jobs_ended", "Jobs that have ended, by status.", "endpoint", "status"
        )
        self.items_started = self._counter(
            "items_started",
            "Items passed to their function. One call of a batched function takes several items.",
            "endpoint",
        )
        self._events_logged = self._counter("events_logged", "Events written to logs.")
        self._bytes_logged = self._counter("bytes_logged", "Bytes of events written to logs.")
        self.stream_requests = self._counter(
            "stream_requests", "GET requests for an event stream, by whether they have a cursor.", "cursor"
        )
        self.snapshots = self._counter(
            "snapshots_sent", "Snapshots created for a single reader, by reason.", "reason"
        )
        self.merged = self._counter(
            "events_merged", "Logged events that were merged into fewer events for a slow reader."
        )
        self.streamed_bytes = self._counter("bytes_streamed", "Bytes of event streams sent to readers.")
        self.stalled = self._counter(
            "streams_stalled", "Streams closed because the reader accepted no byte for stall_timeout."
        )
        self.problems = self._counter("problems", "Problem responses, by code.", "code")
        self.open_streams = Gauge("tidewire_open_streams", "Open event streams.", registry=self.registry)
        for cursor in ("yes", "no"):
            self.stream_requests.labels(cursor)
        for code in ("internal", "unavailable"):
            self.problems.labels(code)

    def begin_at_zero(self, endpoint: str) -> None:
        """Create the counters of an endpoint with the value 0. Prometheus computes no rate for a counter that does not exist
        yet, and ignores its first value. An alert for jobs that never end could otherwise not fire.
        """
        for counter in (self.jobs_submitted, self.jobs_started, self.items_started):
            counter.labels(endpoint)
        for status in get_args(JobEnd):
            self.jobs_ended.labels(endpoint, status)

    def measure(self, name: str, help_text: str, read: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Register a gauge with one value for each endpoint. When the metrics are read, `read` is called for the values."""
        gauge = Gauge(f"tidewire_{name}", help_text, ["endpoint"], registry=self.registry)
        self._measured.append((gauge, read))

    def add(self, counter: Counter, amount: int, *labels: str) -> None:
        """Increase a counter on a hot path. The Prometheus counter itself is updated only when the metrics are read."""
        self._added[counter, labels] += amount

    def logged(self, events: int, size: int) -> None:
        """Count logged events and their bytes."""
        self.add(self._events_logged, events)
        self.add(self._bytes_logged, size)

    def page(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        streamed, self.streamed = self.streamed, 0
        self.streamed_bytes.inc(streamed)
        for gauge, read in self._measured:
            for endpoint, number in read():
                gauge.labels(endpoint).set(number)
        while self._added:
            (counter, labels), amount = self._added.popitem()
            (counter.labels(*labels) if labels else counter).inc(amount)
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"tidewire_{name}", help_text, labels, registry=self.registry)
