"""The words of the page: what each figure is, and what is compared."""

from __future__ import annotations

STAGES = {
    "rpyc": "A router process calls one rpyc server per rank (SGLang 0.1.5, 0.1.17).",
    "broadcast": "Rank 0 lives in the control process and broadcasts to the other ranks over gloo (0.2.0 to 0.3.2).",
    "peer": "One scheduler process per rank, all alike; rank 0 broadcasts (since 0.3.3).",
}

# name, clock starts, clock stops (or what it is), unit
TERMS = [
    ("TTFT", "request handed to the engine", "its first token's text reaches the caller", "ms"),
    ("ITL", "a chunk reaches the caller", "the next one does; over the tokens it brings, counted once for each", "ms"),
    ("gap between chunks", "a chunk reaches the caller", "the next one does", "ms"),
    ("TPOT", "first token", "last token; over the number of tokens less one", "ms"),
    ("E2E", "request handed to the engine", "its last token reaches the caller", "ms"),
    ("output throughput", "first request of a round sent", "last token received", "tokens/s"),
    ("turn", "a rank's loop begins", "it begins again; waiting for work and sleeps left out", "us"),
    ("forward", "batch handed to the model", "the sampled ids are on the host", "us"),
    (
        "control plane",
        "the turn of a replica's rank 0 less its forward",
        "per working turn and per output token; with several replicas added up. An era's sleeps between two turns "
        "count; where rpyc's router is a process of its own they are part of rank 0's wait for it",
        "us",
    ),
    (
        "distribute",
        "a turn's input leaves rank 0 or the router",
        "every rank has it: encode, transport and wait for the slowest, decode; with a router, what its calls last "
        "beyond what rank 0 does in them",
        "us",
    ),
    (
        "CPU time",
        "user and system time of all processes, from the operating system",
        "per working turn and per 1,000 output tokens, without what only simulating takes",
        "s, us",
    ),
    ("start", "the engine is made", "all its processes are ready", "s"),
]

COUNTED = [
    ("rank, TP T", "one of the T processes over which a model is sharded"),
    ("replica, DP D", "one of D engines with the whole model; requests are dealt out to them"),
    ("working turn", "one turn of a loop with a forward in it; era rpyc runs up to ten decode steps in one"),
    (
        "level",
        "constants that make all stages alike but for the process model: one decode step a turn, no sleeps, bytes by "
        "value; an idle engine blocks",
    ),
    ("era", "what each version had: sleeps, bursts of decode steps, encodings, busy loops"),
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
        "95% interval",
        "of the median, by 10,000 bootstrap resamples of the runs (of a ratio: of the pairs of runs of one repeat)",
    ),
    ("no difference seen", "the interval of the ratio holds 1"),
    ("unstable", "the interval of the ratio is wider than the ratio's distance from 1"),
]
