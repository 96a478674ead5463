"""What Prometheus is told. Each server counts for itself: there is no registry of the process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from vitral.deploy.serve.settings import PER_BATCH

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8)
SIZES = (1, 2, 4, 8, 16, PER_BATCH)


class Metrics:
    """Counters and durations.

    >>> metrics = Metrics()
    >>> metrics.count("/predict", 200, 0.25)
    >>> 'vitral_requests_total{path="/predict",status="200"} 1.0' in metrics.text().decode()
    True
    """

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "vitral_requests", "Requests that were answered.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "vitral_request_seconds", "From headers to answer.", ["path"], buckets=SECONDS, registry=self.registry
        )
        self._pictures = Counter(
            "vitral_pictures", "Pictures that were answered for.", ["model"], registry=self.registry
        )
        self._sizes = Histogram("vitral_batch_pictures", "Pictures in a batch.", buckets=SIZES, registry=self.registry)
        self._batch = Histogram(
            "vitral_batch_seconds", "A worker with a batch.", buckets=SECONDS, registry=self.registry
        )
        self._slowest = Gauge(
            "vitral_slowest_batch_seconds", "The longest that a worker was with a batch.", registry=self.registry
        )
        self._longest = 0.0
        self.waiting = Gauge("vitral_waiting_pictures", "Pictures in the queue.", registry=self.registry)
        self.workers = Gauge("vitral_workers", "Workers that can be asked.", registry=self.registry)
        self.restarts = Gauge(
            "vitral_worker_restarts", "Workers that were started for one that ended.", registry=self.registry
        )
        self.held = Gauge("vitral_held_bytes", "Bytes of requests that are here.", registry=self.registry)
        self.takeovers = Counter("vitral_takeovers", "New models that were taken over.", registry=self.registry)

    def count(self, path: str, status: int, seconds: float) -> None:
        """A request was answered. `path` is the route, and nothing that a client made up."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, model: str, pictures: int, seconds: float) -> None:
        """A worker has answered."""
        self._pictures.labels(model).inc(pictures)
        self._sizes.observe(pictures)
        self._batch.observe(seconds)
        self._longest = max(self._longest, seconds)
        self._slowest.set(self._longest)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)
