# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # 4. Every rank plans, or rank 0 plans for all
#
# **Question.** The ranks of a replica must run the same batch. Either all of them are sent the *requests* and each
# works out the same plan (`--scheduling replicated`), or rank 0 plans and sends the others the *plan* (`rank0`).
# Which is cheaper in bytes, CPU time and latency, and does that change with the batch, the queue and the number of
# ranks?
#
# **Predict first.**
#
# 1. In a decode turn nothing new arrives. How many bytes does each way send? How do they grow with the batch?
# 2. Planning takes longer when many wait. For which of the two does the *CPU time* then grow faster, and with which
#    does the *turn* get longer?
# 3. With 4 ranks in place of 2: which of the two is charged for it?
#
# **Data.** `bench scheduling`, on the simulated accelerator: the same requests through every arm. The queue's order
# is `dfs-weight`, which looks at all that wait. With `MEASURE = True`: about 3 minutes on two cores.

# %%
import numpy as np

from experiments.bench.scheduling import SCHEDULINGS, values
from experiments.notebooks.shared import COLOURS, bench_result, in_words, line, ratio_rows, subplots, table, tidy
from report.pictures.forest import add_legend
from report.pictures.style import stage_style

# %% tags=["parameters"]
MEASURE = False
RESULTS = "scheduling.json"
FRESH = ["scheduling", "--repeats", "3", "--stages", "peer,rpyc"]

# %%
result = bench_result(MEASURE, RESULTS, FRESH)
SAMPLES = result["samples"]
CELLS = [tuple(cell) for cell in result["cells"]]
STAGES = list(dict.fromkeys(sample["stage"] for sample in SAMPLES))
SIZES = sorted({sample["tp_size"] for sample in SAMPLES})
TP = SIZES[0]
MOST = result["most_running"]
BATCHES = [cell for cell in CELLS if cell[1] == 0]
QUEUES = [cell for cell in CELLS if cell[0] == MOST]
print(f"TP {SIZES}, policy {result['policy']}; (running, waiting at the beginning): {CELLS}")


def of(stage, scheduling, cell, figure, tp_size=TP):
    return values(SAMPLES, stage, scheduling, tp_size, cell, figure)


# %% [markdown]
# ## Counts: what travels in a turn
#
# What tells the ranks what to do. With gloo (`broadcast`, `peer`) it goes from rank 0 to the others: messages and bytes
# once for each rank that receives them, a collective once. With `rpyc` it is all that the router and the ranks send
# each other, there and back, the tokens among it. Medians of the repeats, per turn (a turn is one forward).

# %%
rows = []
for stage in STAGES:
    for tp_size in SIZES:
        for cell in (cell for cell in CELLS if of(stage, SCHEDULINGS[0], cell, "bytes", tp_size)):
            pairs = [
                f"{np.median(of(stage, SCHEDULINGS[0], cell, name, tp_size)):.4g} / "
                f"{np.median(of(stage, SCHEDULINGS[1], cell, name, tp_size)):.4g}"
                for name in ("bytes", "collectives", "messages")
            ]
            rows.append([f"{stage}, TP {tp_size}, {cell[0]} run, {cell[1]} wait", *pairs])
table(["replicated / rank0", "bytes", "collectives", "messages"], rows)

# %%
# Counts, so without intervals.
for tp_size in SIZES[1:]:
    for stage in STAGES:
        many, few = (
            [np.median(of(stage, s, BATCHES[-1], "bytes", size)) for s in SCHEDULINGS] for size in (tp_size, TP)
        )
        grown = ", ".join(f"{s} {a / b:.2f}" for s, a, b in zip(SCHEDULINGS, many, few, strict=True))
        print(f"bytes a turn at TP {tp_size} over TP {TP}, {stage}: {grown}")

# %% [markdown]
# ## Against the batch
#
# *Per turn at the smallest TP, medians of the repeats with intervals; solid: every rank plans, dashed: rank 0.
# Nobody waits. Left: bytes; `broadcast` and `peer` send the same, so that one line hides the other. Middle: CPU time
# of all processes, without what only simulating takes. Right: time per output token.*

# %%
PANELS = (("bytes", "bytes a turn"), ("cpu_us", "CPU µs a turn, all processes"), ("tpot_us", "TPOT, µs"))


def panels(cells, x, axis):
    figure, grid = subplots(1, 3, size=(14, 4))
    for axes, (name, label) in zip(grid, PANELS, strict=True):
        for stage in STAGES:
            for scheduling, style in zip(SCHEDULINGS, ("-", "--"), strict=True):
                samples = [of(stage, scheduling, cell, name) for cell in cells]
                line(axes, x, samples, color=COLOURS[stage], ls=style, marker="o", label=f"{stage}, {scheduling}")
        axes.set_xlabel(axis)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.set_xticks(x)
        tidy(axes)
    drawn, names = grid[-1].get_legend_handles_labels()
    figure.legend(drawn, names, loc="outside right upper", frameon=False, fontsize=8, handlelength=4)


panels(BATCHES, [running for running, _ in BATCHES], "requests in the batch")

# %% [markdown]
# ## Against the queue
#
# *The same with a full batch and so many requests that wait at the beginning. They leave the queue one by one, so
# with a queue about every second turn is a prefill, and the points at 0 have few of these: compare the two lines at
# one place rather than two places of one line.*

# %%
panels(QUEUES, [waiting for _, waiting in QUEUES], f"requests that wait at the beginning, {MOST} run")

# %% [markdown]
# ## Rank 0's planning
#
# *Wall time of a turn that rank 0 spends on taking requests in, ordering the queue and choosing the batch. Medians
# with intervals. With `replicated` every rank spends this; with `rank0` one rank does, and the others wait for
# it.*

# %%
figure, axes = subplots(size=(8, 3.6))
for stage in STAGES:
    for scheduling, style in zip(SCHEDULINGS, ("-", "--"), strict=True):
        samples = [of(stage, scheduling, cell, "planning_us") for cell in QUEUES]
        label = f"{stage}, {scheduling}"
        line(axes, [cell[1] for cell in QUEUES], samples, color=COLOURS[stage], ls=style, marker="o", label=label)
axes.set_xlabel(f"requests that wait at the beginning, {MOST} run")
axes.set_ylabel("planning of a turn on rank 0, µs")
axes.set_xticks([cell[1] for cell in QUEUES])
axes.set_ylim(bottom=0)
axes.legend(frameon=False, fontsize=8, handlelength=4)
tidy(axes)

# %% [markdown]
# ## rank0 over replicated
#
# *Repeat by repeat: the median of the ratios with its interval, at the smallest TP. To the right of 1, planning
# on rank 0 alone costs more.
# Filled: a difference. Hollow: the interval holds 1. Crossed: the interval is wider than the effect.*

# %%
WORDS = {"cpu_us": "CPU time a turn", "tpot_us": "TPOT"}
found = [one for one in result["ratios"] if one["tp_size"] == TP and one["figure"] in WORDS]
rows = [
    ("{0}, {stage}, {running} run, {waiting} wait".format(WORDS[one["figure"]], **one), one["ratio"],
     stage_style(one["stage"]))
    for one in sorted(found, key=lambda one: (one["figure"], one["running"], one["waiting"]))
]  # fmt: skip
figure, axes = subplots(size=(9, 1 + 0.26 * len(rows)))
ratio_rows(axes, rows, "rank0 over replicated (ratio, log scale)")
add_legend(figure)

# %% [markdown]
# ## What these intervals allow

# %%
for name, words in WORDS.items():
    for one in (one for one in result["ratios"] if one["tp_size"] == TP and one["figure"] == name):
        cell = "{stage}, {running} run, {waiting} wait".format(**one)
        print(f"{words}, rank0 over replicated, {cell}: {in_words(one['ratio'])}")

# %% [markdown]
# The simulated forward needs no core. A longer one brings the ratios of TPOT nearer to 1, since it is on both sides of
# them, and leaves the bytes as they are. Whether CPU time matters depends on whether there are idle cores: with as
# many cores as ranks, the ranks' own planning takes time from nobody; with fewer it does.
#
# ## Exercises
#
# 1. Run `python -m evolution bench scheduling --schedule-policy lpm --stages peer --tp-size 2`. `lpm`, the default,
#    looks at the whole queue up to 128 waiting requests only. Predict the planning time at 1,000.
# 2. What would a rank need to plan exactly as rank 0 does? Look for what the scheduler must not read
#    (`common/scheduler.py` and "What is exact" in the README), and try `--check-divergence 1`.
# 3. The plan of a decode turn is two lists of 4-byte numbers. From the bytes of the table, how long are they at 64?
#    How many of them could the other ranks work out themselves?
# 4. An image comes with a request. Who is sent it with `rank0`, and is that enough (notebook 3)?
