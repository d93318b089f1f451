"""Families in the formats of Prometheus and OpenMetrics, by `prometheus-client` (extra `metrics`), and a port for them.

The port is on loopback unless an address is given. There is nothing to ask for but metrics, and nobody is asked who
they are: names of stages and figures are all that can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from strobe.model.errors import Misuse
from strobe.telemetry.families import Family, MetricKind, merge

__all__ = ["Address", "MetricsServer", "render"]

Source = Callable[[], Iterable[Family]]


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """`PORT`, or `HOST:PORT`; `[::1]:PORT` for addresses with colons."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
        if not (port.isascii() and port.isdecimal()) or int(port) > 65535 or not host:
            raise Misuse(
                f"--metrics {text!r} is not a port.",
                untouched="Nothing was started.",
                next="Write --metrics 9249, or --metrics 0.0.0.0:9249 to be reached from elsewhere.",
            )
        return cls(host, int(port))


class _Collector(Collector):
    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[PrometheusMetric]:
        return ()

    def collect(self) -> Iterator[PrometheusMetric]:
        for family in merge(self._source()):
            metric = family.metric
            kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            written = kind(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
            for sample in family.samples:
                written.add_metric(sample.labels, sample.value)
            yield written


def _registry(source: Source) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(source))
    return registry


def render(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """The families as text, in the format that `accept` (of an HTTP request) asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(_registry(lambda: families)), content_type


class MetricsServer:
    """Serves from the moment it is made. What it serves is asked for at each scrape, in the scrape's own thread."""

    def __init__(self, address: Address) -> None:
        self.source: Source = lambda: ()
        registry = _registry(lambda: self.source())  # noqa: PLW0108  (it is changed later)
        try:
            self._server, self._thread = start_http_server(address.port, address.host, registry)
        except OSError as error:
            raise Misuse(
                f"Metrics cannot be served at {address.host}:{address.port}: {error.strerror or error}.",
                untouched="Nothing was started.",
                next="Choose another port with --metrics, or end what listens there.",
            ) from error
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
