# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # 5. Who gets the next request
#
# **Question.** With data parallelism a dispatcher hands each request to one of several replicas. `round_robin` takes
# turns. `shortest_queue` takes the replica with the fewest requests, but *which* queue is meant: all requests that
# are not finished (as `level` has it), or those that the replica has not yet taken in (as SGLang 0.1.17 and 0.2.0 had
# it, here `era`)? What does that do to the share of each replica, and to the requests that wait longest?
#
# **Predict first.** One request in eight is twenty times as long as the others.
#
# 1. Which share of the *requests* goes to each of two replicas under each policy? And of the *tokens*?
# 2. A replica takes its queue in before every step, however much it has to do. What then does `shortest_queue` of the
#    era see at low load? Which replica is chosen when all queues are empty?
# 3. At which load is the policy worth most for the 95th percentile of the time to the first token?
#
# **Data.** `bench dispatch`, on a simulated accelerator with a forward of about 5 ms; at most 4 requests run in a
# replica. Load 1 is the rate that the stage manages with `round_robin` when all requests are there from the start.
# With `MEASURE = True`: about 3 minutes on two cores.

# %%
import numpy as np

from experiments.bench.dispatch import PERCENTILES, POLICIES, chosen
from experiments.notebooks.shared import (
    bars,
    bench_result,
    in_words,
    line,
    log_scale,
    ratio_rows,
    subplots,
    table,
    tidy,
    value_in_words,
)
from report.pictures.forest import add_legend
from report.pictures.style import stage_style

# %% tags=["parameters"]
MEASURE = False
RESULTS = "dispatch.json"
FRESH = ["dispatch", "--repeats", "3", "--dp-size", "2"]

# %%
result = bench_result(MEASURE, RESULTS, FRESH)
SAMPLES, LOADS, CAPACITIES = result["samples"], result["loads"], result["capacities"]
SIZES = sorted({one["dp_size"] for one in CAPACITIES})
SYSTEMS = list(dict.fromkeys((one["stage"], one["constants"]) for one in CAPACITIES))
COLOUR = dict(zip(POLICIES, ("#8c8c8c", "#c44e52"), strict=True))
short, long = result["prompt_tokens"]
print(f"{result['requests_per_replica']} requests per replica and load; prompts of {short} and {long} tokens, "
      f"one in {result['long_every']} long; outputs a quarter of that")  # fmt: skip


def of(stage, constants, policy, load, dp_size):
    return chosen(SAMPLES, stage=stage, constants=constants, policy=policy, load=load, dp_size=dp_size)


# %% [markdown]
# ## Load 1
#
# What the replicas of each stage manage, in requests a second. The eras have lower ones (their sleeps and bursts), so
# a load is a fraction of the *own* capacity, and only the two policies of one stage are compared.

# %%
rates = {(one["stage"], one["constants"], one["dp_size"]): one["requests_per_s"] for one in CAPACITIES}
rows = [[f"{stage} {constants}", *(rates[stage, constants, size] for size in SIZES)] for stage, constants in SYSTEMS]
table(["requests/s at load 1", *(f"DP {size}" for size in SIZES)], rows)

# %% [markdown]
# ## The share of the busiest replica
#
# *Of the requests and, in the row below, of the tokens, by load; medians of the repeats with intervals. The
# dotted line is an equal share. One column for each stage; above two replicas there may be one run, without an
# interval.*

# %%
figure, grid = subplots(2 * len(SIZES), len(SYSTEMS), size=(13, 5 * len(SIZES)), sharey=True, squeeze=False)
for row, (dp_size, name) in enumerate((s, n) for s in SIZES for n in ("share_of_requests", "share_of_tokens")):
    for axes, (stage, constants) in zip(grid[row], SYSTEMS, strict=True):
        for place, policy in enumerate(POLICIES):
            samples = [[100 * max(s[name]) for s in of(stage, constants, policy, load, dp_size)] for load in LOADS]
            x = [number + 0.4 * (place - 0.5) for number in range(len(LOADS))]
            bars(axes, x, samples, 0.38, color=COLOUR[policy], label=policy)
        axes.axhline(100 / dp_size, color="black", ls=":", lw=1)
        axes.set_xticks(range(len(LOADS)), [f"{load:g}" for load in LOADS])
        axes.set_xlabel("load, fraction of the capacity")
        axes.set_ylabel(f"busiest, % of the {name.removeprefix('share_of_')}")
        axes.set_title(f"{stage} {constants}, DP {dp_size}", loc="left", fontsize=10)
        axes.set_ylim(0, 128)
        axes.set_yticks(range(0, 101, 20))
        tidy(axes)
        axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)

# %% [markdown]
# ## How long they wait
#
# *The time to the first token at each percentile of a run's requests: medians of the repeats with intervals (log
# scale), at the fewest replicas, one column for each load. Solid: `round_robin`, dashed: `shortest_queue`.*

# %%
DP = SIZES[0]
figure, grid = subplots(
    len(SYSTEMS), len(LOADS), size=(5.5 * len(LOADS), 3.1 * len(SYSTEMS)), squeeze=False, sharey="row"
)
for axes_row, (stage, constants) in zip(grid, SYSTEMS, strict=True):
    for axes, load in zip(axes_row, LOADS, strict=True):
        for policy, style in zip(POLICIES, ("-", "--"), strict=True):
            runs = of(stage, constants, policy, load, DP)
            samples = [[1e3 * np.percentile(run["ttft"], percent) for run in runs] for percent in PERCENTILES]
            line(axes, range(len(PERCENTILES)), samples, color=COLOUR[policy], ls=style, marker="o", label=policy)
        axes.set_xticks(range(len(PERCENTILES)), PERCENTILES)
        axes.set_xlabel("percentile of the requests")
        axes.set_ylabel("TTFT, ms")
        axes.set_title(f"{stage} {constants}, DP {DP}, load {load:g}", loc="left", fontsize=10)
        tidy(axes)
        axes.legend(frameon=False, fontsize=8)
    log_scale(axes_row[0])  # that of the whole row

# %% [markdown]
# ## shortest_queue over round_robin
#
# *Repeat by repeat, the ratio of the percentiles of TTFT and E2E with its interval. To the left of 1,
# `shortest_queue` takes less time. The requests and their arrivals are the same in both.
# Filled: a difference. Hollow: the interval holds 1. Crossed: the interval is wider than the effect.*

# %%
found = [one for one in result["ratios"] if one["dp_size"] == DP and one["percentile"] in (50, 95)]
rows = [
    ("{time} p{percentile}, {stage} {constants}, load {load:g}".format(**one), one["ratio"],
     stage_style(one["stage"]))
    for one in found
]  # fmt: skip
figure, axes = subplots(size=(9, 1 + 0.26 * len(rows)))
ratio_rows(axes, rows, "shortest_queue over round_robin (ratio, log scale)")
add_legend(figure)

# %% [markdown]
# ## What these intervals allow

# %%
for label, ratio, _ in rows:
    print(f"{label}: {in_words(ratio)}")
for dp_size in SIZES:
    for stage, constants in SYSTEMS:
        for load in LOADS:
            runs = of(stage, constants, "shortest_queue", load, dp_size)
            shares = [100 * max(run["share_of_requests"]) for run in runs]
            busiest = f"the busiest replica has {value_in_words(shares, '%')} of the requests"
            print(f"DP {dp_size}, {stage} {constants}, load {load:g}: {busiest}; equal is {100 / dp_size:.0f}%")

# %% [markdown]
# A high percentile rests on few requests of a run, the 99th of 80 on the slowest alone: the interval over the repeats
# says how little that is. And a policy can only be as good as what it counts: *requests* are not *work* when
# one is twenty times another.
#
# ## Exercises
#
# 1. Both dispatchers are in `common/dispatch.py`, 30 lines each. Write a third that counts outstanding *tokens* (what
#    must it be told, and by whom?), and measure it against the other two.
# 2. With `era`, at which arrival rate do the replicas begin to share the work? Express it in steps of a replica, and
#    check it with `python -m evolution bench dispatch --systems broadcast:era --loads 0.1,0.2,0.4,0.8`.
# 3. A dispatcher that knows the radix caches would send a request where its prefix is. With which of the two policies
#    does that conflict more?
# 4. Measure at DP 4 (`--dp-size 4 --repeats 3`). Is the advantage of `shortest_queue` larger than at 2? Predict
#    first.
