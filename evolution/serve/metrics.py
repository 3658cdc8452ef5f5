"""Figures for Prometheus under SGLang's names, in a registry of the app's own. Times are in seconds.

Gauges are what the replicas said last, at most 100 ms before; the rest is counted here, where the answers pass.
TTFT is known only of requests that stream, as others bring all their tokens at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily

from common.messages import LoadReport
from evolution.streams import Stream

TTFT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.4, 1, 2.5)
E2E = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
THROUGHPUT_WINDOW = 5.0


class Metrics:
    def __init__(self, model_name: str, load: dict[int, LoadReport], replicas: int, slots: int) -> None:
        """load: the last report of each replica, kept up to date by its owner. slots: of a replica's KV pool."""
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._model_name = model_name
        self._load = load
        self._replicas, self._slots = replicas, slots
        self._looks: list[tuple[float, int]] = [(time.monotonic(), 0)]  # (when, tokens generated until then)
        self._tokens = self._prompt_tokens = self._cached_tokens = 0

        def counter(name: str, what: str) -> Counter:
            return Counter(f"sglang:{name}", what, ["model_name"], registry=self.registry).labels(model_name)

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"sglang:{name}", what, ["model_name"], buckets=buckets, registry=self.registry)
            return metric.labels(model_name)

        self._requests = counter("num_requests", "Requests taken in")
        self._aborted = counter("num_aborted_requests", "Requests that ended in an abort")
        self._prompt = counter("prompt_tokens", "Prompt tokens of finished requests")
        self._cached = counter("cached_tokens", "Those of them that were in the cache")
        self._generation = counter("generation_tokens", "Tokens generated")
        self._ttft = histogram("time_to_first_token_seconds", "Until the first token, of requests that stream", TTFT)
        self._tpot = histogram("time_per_output_token_seconds", "Per token after the first, by request", PER_TOKEN)
        self._e2e = histogram("e2e_request_latency_seconds", "Until the last token", E2E)

    # ------------------------------------------------------------------ what happened

    def received(self, requests: int) -> None:
        self._requests.inc(requests)

    def generated(self, tokens: int) -> None:
        self._tokens += tokens
        self._generation.inc(tokens)

    def finished(self, stream: Stream, meta_info: dict[str, Any]) -> None:
        if meta_info["finish_reason"]["type"] == "abort":
            self._aborted.inc()
        prompt, cached = meta_info["prompt_tokens"], meta_info["cached_tokens"]
        self._prompt_tokens += prompt
        self._cached_tokens += cached
        self._prompt.inc(prompt)
        self._cached.inc(cached)
        self._e2e.observe(meta_info["e2e_latency"])
        if len(stream.arrivals) > 1:
            first, last = stream.arrivals[0][0], stream.arrivals[-1][0]
            self._ttft.observe(first - stream.started)
            self._tpot.observe((last - first) / (meta_info["completion_tokens"] - stream.arrivals[0][1]))

    def aborted(self, requests: int) -> None:
        """Their clients have left, and nobody reads how they end."""
        self._aborted.inc(requests)

    # ------------------------------------------------------------------ what is shown

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges, for the registry."""
        load = list(self._load.values())
        used = sum(self._slots - report.free_tokens - report.evictable_tokens for report in load)
        gauges = (
            ("num_running_reqs", "Requests in the running batches", sum(report.running for report in load)),
            ("num_queue_reqs", "Requests that wait", sum(report.waiting for report in load)),
            ("num_used_tokens", "KV slots that requests hold", used),
            ("token_usage", "The same over all slots", used / (self._slots * self._replicas)),
            (
                "cache_hit_rate",
                "Cached over all prompt tokens so far",
                self._cached_tokens / (self._prompt_tokens or 1),
            ),
            ("gen_throughput", "Tokens/s since a look at least 5 s ago, or the start", self._throughput()),
        )
        for name, what, value in gauges:
            family = GaugeMetricFamily(f"sglang:{name}", what, labels=["model_name"])
            family.add_metric([self._model_name], value)
            yield family

    def _throughput(self) -> float:
        now = time.monotonic()
        while len(self._looks) > 1 and self._looks[1][0] <= now - THROUGHPUT_WINDOW:
            del self._looks[0]
        since, tokens = self._looks[0]
        if now - self._looks[-1][0] >= 1:
            self._looks.append((now, self._tokens))
        return (self._tokens - tokens) / (now - since) if now > since else 0.0
