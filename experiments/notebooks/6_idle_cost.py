# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # 6. What an idle engine costs
#
# **Question.** Between two requests an engine can *spin* (look again and again whether something came), *poll* (sleep
# a little, look, sleep) or *block* (until the kernel wakes it). What does each burn, and how much later is the first
# request taken in?
#
# **Predict first.** Two ranks, no request for five seconds:
#
# 1. How many cores does each stage burn with the constants of its era? And when it blocks?
# 2. How many context switches a second? Does the one that burns most also switch most?
# 3. By how much is the first request later when the engine blocked: 10 us, 1 ms, 30 ms?
#
# **Data.** `bench idle` on the simulated accelerator. With `MEASURE = True`: about 2 minutes on two cores. It wants a
# quiet machine: whatever else runs is in the first request's time.

# %%
import numpy as np

from experiments.intervals import median_interval, pairwise_ratio
from experiments.notebooks.shared import (
    COLOURS,
    bench_result,
    difference_in_words,
    in_words,
    log_scale,
    points,
    subplots,
    table,
    tidy,
    value_in_words,
)

# %% tags=["parameters"]
MEASURE = False
RESULTS = "idle.json"
FRESH = ["idle", "--repeats", "3", "--seconds", "2"]

# %%
result = bench_result(MEASURE, RESULTS, FRESH)
CELLS = {(cell["stage"], cell["arm"]): cell for cell in result["cells"]}
STAGES, ARMS = result["stages"], list(dict.fromkeys(arm for _, arm in CELLS))
print(f"{result['repeats']} rounds, {result['seconds']:g} s without a request; arms: {', '.join(ARMS)}")

# %% [markdown]
# ## Cores burned, and context switches
#
# *Left: cores that all processes of an idle engine burn together (log scale); a core is one second of CPU time a
# second. Right: voluntary context switches a second, where a thread went to wait (log scale). Medians of the windows
# with intervals. `level` blocks; `level, spin` is the same engine that spins; `era` does what its version did.*

# %%
figure, grid = subplots(1, 2, size=(12, 4.6))
for axes, name, axis in ((grid[0], "cores", "cores"), (grid[1], "voluntary", "voluntary context switches a second")):
    for place, stage in enumerate(STAGES):
        samples = [CELLS[stage, arm][name] for arm in ARMS]
        x = [number + 0.18 * (place - 1) for number in range(len(ARMS))]
        points(axes, x, samples, color=COLOURS[stage], marker="os^"[place], label=stage)
    log_scale(axes)
    axes.set_xticks(range(len(ARMS)), ARMS)
    axes.set_xlabel("what the engine does when idle")
    axes.set_ylabel(axis)
    axes.legend(frameon=False, loc="upper left")
    tidy(axes)

# %% [markdown]
# ## The same in numbers
#
# Involuntary switches are those where the kernel took the core away: a spinning thread gets them when others want to
# run. A dash: the machine does not count system calls.

# %%
rows = []
for (stage, arm), cell in CELLS.items():
    calls = [count for count in cell["syscalls"] if count is not None]
    counts = [float(np.median(cell[name])) for name in ("cores", "voluntary", "involuntary")]
    rows.append([f"{stage}, {arm}", *counts, float(np.median(calls)) if calls else None])
table(["", "cores", "voluntary switches/s", "involuntary switches/s", "system calls/s"], rows)

# %% [markdown]
# ## The first request after the silence
#
# *Time from the hand-over in the main process until the last rank has the request, each window one dot. It is traced
# with `level` constants only. Dots to the left are good; what spins should be there.*

# %%
figure, axes = subplots(size=(10, 3.2))
labels = []
for stage in STAGES:
    for arm in ARMS:
        first = CELLS[stage, arm]["first"]
        if first:
            low, high = median_interval(first)
            place = -len(labels)
            axes.plot(np.array(first) * 1e3, [place] * len(first), "o", color=COLOURS[stage], alpha=0.45)
            axes.plot([low * 1e3, high * 1e3], [place + 0.25] * 2, color=COLOURS[stage], lw=2)
            axes.plot(np.median(first) * 1e3, place + 0.25, "|", color="black", markersize=9)
            labels.append(f"{stage}, {arm}")
axes.set_yticks([-place for place in range(len(labels))], labels)
axes.set_xlabel("ms from hand-over until every rank has the request (dots: windows; line: median and interval)")
axes.set_xlim(left=0)
tidy(axes)

# %% [markdown]
# ## What these intervals allow

# %%
for stage in STAGES:
    for arm in ARMS:
        print(f"{stage}, {arm}: {value_in_words(CELLS[stage, arm]['cores'], 'cores')}")
    spinning, blocking = CELLS[stage, "level, spin"]["first"], CELLS[stage, "level"]["first"]
    if spinning and len(spinning) == len(blocking):
        later = (np.array(blocking) - np.array(spinning)) * 1e3
        print(f"  first request, blocking minus spinning: {difference_in_words(later, 'ms')}")
        print(f"  as a ratio: {in_words(pairwise_ratio(blocking, spinning))}")

# %% [markdown]
# The cost of spinning is paid every second, the gain of it once per silence. What the gain is worth depends on a
# forward of the real model, which this notebook does not run.
#
# ## Exercises
#
# 1. From the table: a server with eight ranks that spin, idle half of the day. How many core-hours a day? (Measure it
#    with `--tp-size 8`? On a machine with fewer cores, why would the figure be wrong?)
# 2. `rpyc` of its era does not spin: it sleeps between two looks. Find the sleep in `python -m evolution history
#    eras` and predict its context switches a second from it. Does the figure agree?
# 3. gloo's threads wake again and again even when the engine blocks. Which point shows it, how often is it, and which
#    stage does not have it? Why?
# 4. Run `python -m evolution run --device sim --stage peer --tp-size 2 --num-prompts 4 --request-rate 0.5` with
#    `--idle spin` and with `--idle block`. Compare the CPU tables with the points.
