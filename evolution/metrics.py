"""Latency and throughput from streams; names and definitions of sglang.bench_serving 0.4.6.

| name | clock starts | clock stops |
|---|---|---|
| TTFT | request handed to the engine | first token's chunk reaches the caller |
| ITL  | a chunk reaches the caller | the next one does; divided by the tokens it brings, repeated for each |
| TPOT | first token | last token, divided by (tokens - 1) |
| E2E  | request handed over | last token reaches the caller |

Clock: `time.perf_counter` in the main process. Details are in seconds, summaries in ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evolution.streams import Stream


@dataclass(frozen=True)
class Samples:
    """Raw samples in seconds. `ttfts`, `itls` and `chunk_gaps` have an entry per request (a TTFT of 0.0 where there
    are no tokens, as bench_serving writes it); the other lists leave such requests out."""

    ttft: list[float]
    ttfts: list[float]
    itl: list[float]
    tpot: list[float]
    e2e: list[float]
    itls: list[list[float]]
    chunk_gaps: list[list[float]]
    output_tokens: int
    duration: float


def collect(streams: list[Stream]) -> Samples:
    """Samples of finished streams. A request that asked for no tokens has no latencies."""
    ttft, ttfts, tpot, e2e, itls, chunk_gaps = [], [], [], [], [], []
    for stream in streams:
        if not stream.arrivals:
            itls.append([])
            chunk_gaps.append([])
            ttfts.append(0.0)
            continue
        first, last = stream.arrivals[0][0], stream.arrivals[-1][0]
        tokens = sum(count for _, count in stream.arrivals)
        ttft.append(first - stream.started)
        ttfts.append(first - stream.started)
        e2e.append(last - stream.started)
        if tokens > 1:
            tpot.append((last - first) / (tokens - 1))
        gaps = [
            (now - before, count)
            for (before, _), (now, count) in zip(stream.arrivals, stream.arrivals[1:], strict=False)
        ]
        chunk_gaps.append([gap for gap, _ in gaps])
        itls.append([gap / count for gap, count in gaps for _ in range(count)])
    ends = [stream.arrivals[-1][0] for stream in streams if stream.arrivals]
    return Samples(
        ttft,
        ttfts,
        [gap for gaps in itls for gap in gaps],
        tpot,
        e2e,
        itls,
        chunk_gaps,
        sum(count for stream in streams for _, count in stream.arrivals),
        max(ends, default=0.0) - min(stream.started for stream in streams) if ends else 0.0,
    )


def summary(name: str, seconds: list[float]) -> dict[str, float]:
    """mean, median, std and percentiles in ms, under bench_serving's names."""
    if not seconds:
        return {}
    ms = np.asarray(seconds) * 1e3
    return {
        f"mean_{name}_ms": float(ms.mean()),
        f"median_{name}_ms": float(np.median(ms)),
        f"std_{name}_ms": float(ms.std()),
        f"p90_{name}_ms": float(np.percentile(ms, 90)),
        f"p95_{name}_ms": float(np.percentile(ms, 95)),
        f"p99_{name}_ms": float(np.percentile(ms, 99)),
    }
