"""What a server counts, for Prometheus (`GET /metrics`). One registry per server, none of the process's own."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.streamed = 0
        """Bytes of event streams that were sent and are not in `streamed_bytes` yet."""
        self._events = self._bytes = 0  # that were logged and are not in their counters yet
        self._added: defaultdict[tuple[Counter, tuple[str, ...]], int] = defaultdict(int)
        self.jobs_submitted = self._counter("jobs_submitted", "Jobs that were committed.", "endpoint")
        self.jobs_started = self._counter("jobs_started", "Jobs whose first item began to run.", "endpoint")
        self.jobs_ended = self._counter("jobs_ended", "Jobs that ended, by status.", "endpoint", "status")
        self.items_started = self._counter(
            "items_started",
            "Items whose function began to run; a batched one takes several in a call.",
            "endpoint",
        )
        self._events_logged = self._counter("events_logged", "Events written to logs.")
        self._bytes_logged = self._counter("bytes_logged", "Bytes of events written to logs.")
        self.stream_requests = self._counter(
            "stream_requests", "GETs of an event stream, by whether they came with a cursor.", "cursor"
        )
        self.snapshots = self._counter(
            "snapshots_sent", "Snapshots made for one reader, by reason.", "reason"
        )
        self.merged = self._counter(
            "events_merged", "Logged events that went to a reader as parts of fewer, because it was behind."
        )
        self.streamed_bytes = self._counter("bytes_streamed", "Bytes of event streams sent.")
        self.stalled = self._counter("streams_stalled", "Streams closed because their reader took no byte.")
        self.problems = self._counter("problems", "Requests answered with a problem, by code.", "code")
        self.open_streams = Gauge(
            "tidewire_open_streams", "Event streams that are open.", registry=self.registry
        )
        for cursor in ("yes", "no"):
            self.stream_requests.labels(cursor)

    def measure(self, name: str, help_text: str, read: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Report a number for each endpoint, read when it is asked for."""
        self.registry.register(_PerEndpoint(f"tidewire_{name}", help_text, read))

    def add(self, counter: Counter, amount: int, *labels: str) -> None:
        """Count on the path of every event: cheaper than the counter itself, which gets it when it is read."""
        self._added[counter, labels] += amount

    def logged(self, events: int, size: int) -> None:
        """Count events that were logged, and their bytes."""
        self._events += events
        self._bytes += size

    def page(self) -> bytes:
        """All of it in Prometheus' text form."""
        streamed, self.streamed = self.streamed, 0
        self.streamed_bytes.inc(streamed)
        events, self._events = self._events, 0
        self._events_logged.inc(events)
        size, self._bytes = self._bytes, 0
        self._bytes_logged.inc(size)
        while self._added:
            (counter, labels), amount = self._added.popitem()
            (counter.labels(*labels) if labels else counter).inc(amount)
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"tidewire_{name}", help_text, labels, registry=self.registry)


class _PerEndpoint(Collector):
    def __init__(self, name: str, help_text: str, read: Callable[[], Iterable[tuple[str, float]]]) -> None:
        self._name, self._help, self._read = name, help_text, read

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._help, labels=["endpoint"])
        for endpoint, number in self._read():
            family.add_metric([endpoint], number)
        yield family

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(self._name, self._help, labels=["endpoint"])]
