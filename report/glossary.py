"""The words of the page: what each figure is, and what is compared."""

from __future__ import annotations

from experiments.intervals import ENOUGH

STAGES = {
    "rpyc": "A router process calls one rpyc server per rank (SGLang 0.1.5, 0.1.17).",
    "broadcast": "Rank 0 lives in the control process and broadcasts to the other ranks over gloo (0.2.0 to 0.3.2).",
    "peer": "One scheduler process per rank, all alike; rank 0 broadcasts (since 0.3.3).",
}

# name, clock starts, clock stops (or what it is), unit; as evolution/metrics.py and experiments/compare/metrics.py
# compute them
TERMS = [
    ("TTFT", "request handed to the engine", "its first token's chunk reaches the caller", "ms"),
    ("ITL", "a chunk reaches the caller", "the next one does; divided by the tokens it brings, once for each", "ms"),
    ("gap between chunks", "a chunk reaches the caller", "the next one does; p99: the 99th percentile of a run", "ms"),
    ("TPOT", "first token", "last token; over the number of tokens less one", "ms"),
    ("E2E", "request handed to the engine", "its last token reaches the caller", "ms"),
    (
        "output throughput",
        "first request of a round sent",
        "last token received; output tokens of all rounds over that time. More is better",
        "tokens/s",
    ),
    ("turn", "a loop begins", "it begins again; only waiting for work (idle) is left out", "µs"),
    ("forward", "a batch is made ready for the model", "the sampled ids are there: prepare, forward and sample", "µs"),
    (
        "control plane of a turn",
        "the turn of a replica's rank 0 without idle and forward",
        "the median of a run's working turns; with several replicas the mean of their medians. An era's sleeps between "
        "two turns count, and so does an rpyc rank's wait for its router",
        "µs",
    ),
    (
        "control plane of a token",
        "the same of all working turns of all replicas, added up",
        "over the output tokens: prefills and turns that took long are in it, so it is not the median turn's share",
        "µs",
    ),
    (
        "distribute of a turn",
        "the slowest rank is ready for a turn's input",
        "the last rank has it, and for rpyc the way back too: encode, transport, decode. Medians over working turns",
        "µs",
    ),
    ("wait for the slowest rank", "rank 0 or the router is ready to send", "the last rank is ready to receive", "µs"),
    (
        "CPU time",
        "user and system time of all processes, from the operating system",
        "without what only simulating takes; per working turn and per 1,000 output tokens",
        "µs, s",
    ),
    (
        "dispatcher's CPU time",
        "of the process that hands requests to the replicas",
        "per 1,000 output tokens; where rpyc has several replicas, their routers are its threads",
        "µs",
    ),
    ("start", "the engine is made", "all its processes are ready", "s"),
]

COUNTED = [
    ("rank, TP T", "one of the T processes over which a model is sharded"),
    ("replica, DP D", "one of D engines with the whole model; requests are dealt out to them"),
    (
        "working turn",
        "one turn of a loop with a forward in it, or more: era rpyc runs up to ten decode steps in one. Of several "
        "replicas the turns are added up",
    ),
    (
        "level",
        "constants that make all stages alike but for the process model: one decode step a turn, no sleeps, bytes by "
        "value; an idle engine blocks",
    ),
    ("era", "what each version had: sleeps, bursts of decode steps, encodings, busy loops"),
    ("replicated, rank0", "who plans a turn's batch: every rank for itself, or rank 0 for all"),
    (
        "messages",
        "between processes, counted where they are sent: ZMQ, rpyc's calls, answers and callbacks, queues and pipes; a "
        "broadcast counts once for each rank that receives it",
    ),
    (
        "bytes, pickles, copies",
        "of all these messages, as encoded; the pickles made for them; copies of the whole that an encoding makes",
    ),
    ("collectives", "broadcasts from rank 0 to the other ranks of its replica, each counted once"),
    (
        "context switches",
        "of all threads of all processes, voluntary (a thread waits) and involuntary (the kernel takes its core away), "
        "from the operating system",
    ),
    (
        "interval",
        "of the median, of the runs (of a ratio: of the pairs of runs of one repeat): from the k-th least to the k-th "
        f"largest, with k as large as leaves 95%. Of fewer than {ENOUGH} it is their range, and less sure",
    ),
    ("no difference seen", "the interval of the ratio holds 1"),
    ("unstable", "the interval of the ratio is wider than the ratio's distance from 1"),
]
