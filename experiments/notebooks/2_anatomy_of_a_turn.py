# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # 2. Anatomy of a turn
#
# **Question.** A *turn* takes requests in, hands them to every rank, plans a batch, runs the forward, and sends the
# tokens out. Where does its time go, which of it is the process model's, and what do the other processes do
# meanwhile?
#
# **Predict first.** For 16 requests on two ranks:
#
# 1. What share of a turn is the forward? What is the largest of the other parts?
# 2. While rank 0 plans, what does rank 1 do: the same, or wait?
# 3. Which process burns most CPU time: a rank, the detokenizer, or the main process?
#
# **Data.** Runs of the shipped comparison that were traced: every thread notes which part of its turn begins when.
# The parts exclude each other and add up to the turn. With `MEASURE = True`: about 2 minutes on two cores.

# %%
import numpy as np

from experiments.compare.measure import FORWARD, IDLE
from experiments.compare.metrics import TIMES, leaders
from experiments.intervals import ENOUGH, median_interval
from experiments.notebooks.shared import COLOURS, bars, comparison, in_words, subplots, table
from report.comparison import heading, ratio, stage_pairs
from report.pictures.style import part_patches
from report.pictures.turn_parts import bars_of, stack
from report.pictures.turn_strip import draw_strip, median_strip

# %% tags=["parameters"]
MEASURE = False
RESULTS = "compare-sim"
FRESH = ["--device", "sim", "--tp-size", "2", "--constants", "level,era", "--repeats", "3", "--rounds", "1"]

# %%
plan, runs = comparison(MEASURE, RESULTS, FRESH)
TP = max(arm.tp_size for arm in plan.arms)
ARMS = [arm for arm in plan.arms if (arm.tp_size, arm.dp_size) == (TP, 1)]
LEVEL = [arm for arm in ARMS if arm.constants == "level"]
NAMES = {arm: heading(plan, arm).replace("\n", " ") for arm in ARMS}
TURN, FORWARD_OF_A_TURN, CONTROL = (
    next(metric for metric in TIMES if metric.name == name)
    for name in ("turn", "forward of a turn", "control plane of a turn")
)

# %% [markdown]
# ## One turn, process by process
#
# *The turn of rank 0 that is the median by length, in one run of each stage with level constants; time runs to the
# right from its beginning. A thin line: the thread waits for work. One turn is an illustration, no measurement: the
# next figure has all of them.*

# %%
figure, grid = subplots(len(LEVEL), 1, size=(11, 2.3 * len(LEVEL)), squeeze=False)
seen = set()
for axes, arm in zip(grid[:, 0], LEVEL, strict=True):
    seen |= draw_strip(axes, median_strip([run for run in runs if run.arm == arm]).strip, 1)
    axes.set_xlabel("µs since the turn of rank 0 began")
    axes.set_title(NAMES[arm], loc="left", fontsize=10)
legend = figure.legend(handles=part_patches(seen), loc="outside right upper", frameon=False, fontsize=8)

# %% [markdown]
# ## Where rank 0's turn goes
#
# *Wall time of a working turn, by part: means over all turns and repeats, since medians of parts would not add up.
# Left: of a turn, level constants. Right: of an output token, where a burst of decode steps shares one turn's cost.
# Waiting for work is left out. `wait_for_router` is all that an rpyc rank cannot see between two calls: transport, the
# router's own work, and an era's sleeps. A router runs beside rank 0: its bar is not to be added.*

# %%
PER_TURN, PER_TOKEN = 0, 1
BARS = {bar: both for arm in ARMS for bar, both in bars_of(runs, [arm], NAMES).items()}
LEVEL_BARS = bars_of(runs, LEVEL, NAMES)
figure, grid = subplots(1, 2, size=(14, 1.5 + 0.4 * len(BARS)))
seen = stack(grid[0], {bar: both[PER_TURN] for bar, both in LEVEL_BARS.items()})
seen |= stack(grid[1], {bar: both[PER_TOKEN] for bar, both in BARS.items()})
for axes, unit in zip(grid, ("turn", "output token"), strict=True):
    axes.set_xlabel(f"µs per {unit} (wall time)")
legend = figure.legend(handles=part_patches(seen), loc="outside right upper", frameon=False, fontsize=8)

# %%
# Means, as in the picture.
rows = []
for bar, both in LEVEL_BARS.items():
    outside = {part: wall for part, wall in both[PER_TURN].items() if part not in FORWARD}
    largest = max(outside, key=outside.get)
    rows.append([bar, largest, outside[largest]])
table(["", "largest part outside the forward", "µs a turn"], rows)

# %% [markdown]
# ## The control plane's share
#
# *Control plane: the turn without its forward (prepare, forward, sample) and without waiting for work; an era's
# sleeps are in it. The median turn of a run; of these the medians of the repeats with their intervals. `other` is
# what no part claims: where it is large, the parts above say little.*

# %%
rows = []
for arm in ARMS:
    mine = [run for run in runs if run.arm == arm and leaders(run)]
    shares = [CONTROL.of(run) / TURN.of(run) for run in mine]
    others = [
        sum(turns.parts.get("other", (0, 0))[0] for turns in leaders(run))
        / sum(wall for turns in leaders(run) for name, (wall, _) in turns.parts.items() if name != IDLE)
        for run in mine
    ]
    low, high = median_interval(shares)
    times = [float(np.median([metric.of(run) for run in mine])) for metric in (TURN, FORWARD_OF_A_TURN, CONTROL)]
    few = f": range of {len(shares)}" if len(shares) < ENOUGH else ""
    share = f"{np.median(shares):.1%} [{low:.1%}, {high:.1%}{few}]"
    rows.append([NAMES[arm], *times, share, f"{np.median(others):.1%}"])
table(["", "turn, µs", "forward, µs", "control plane, µs", "share of the turn", "other"], rows)

# %% [markdown]
# ## CPU time by process
#
# *CPU time (user and system) of each process for 1,000 output tokens, level constants, medians of the repeats with
# intervals. It includes what simulating the forward takes. A rank that waits for the slowest in a collective may
# burn CPU or not: wall time does not show which.*

# %%
figure, grid = subplots(1, len(LEVEL), size=(4.2 * len(LEVEL), 3.4), sharey=True, squeeze=False)
for axes, arm in zip(grid[0], LEVEL, strict=True):
    by_process = {}
    for run in (run for run in runs if run.arm == arm):
        for process in run.processes:
            by_process.setdefault(process.name, []).append(process.cpu_us / run.output_tokens)
    samples = list(by_process.values())
    bars(axes, range(len(samples)), samples, 0.6, color=COLOURS[arm.stage])
    axes.set_xticks(range(len(samples)), by_process, rotation=30, ha="right", fontsize=8)
    axes.set_title(arm.name, loc="left", fontsize=9)
    axes.set_ylabel("CPU ms per 1,000 output tokens")
    axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## What these intervals allow

# %%
for metric in (TURN, FORWARD_OF_A_TURN, CONTROL):
    for above, below in stage_pairs(plan):
        if above in LEVEL:
            one = ratio(metric, above, below, runs)
            if one:
                print(f"{metric.name}: {above.stage} over {below.stage}: {in_words(one.ratio)}")

# %% [markdown]
# A part's *length* is what one thread sees. `distribute` of a lock-step broadcast holds the waiting for the slowest
# rank, so a long one does not mean that moving the bytes is slow. (The figure `distribute of a turn` of a comparison is
# made from the traces of all ranks, and leaves that wait out.)
#
# ## Exercises
#
# 1. `python -m evolution trace --stage peer --tp-size 2 --device sim --num-prompts 16 --out trace.json`, and open the
#    file in ui.perfetto.dev. Find the turn in which the prompts come in. Which part is longer there than in a decode
#    turn?
# 2. Every rank plans here. Add `"--scheduling", "rank0"` to `FRESH`: then rank 0 plans and sends the plan. Which part
#    of a turn of the others goes away, and where in the turn of `rpyc` is the second call?
# 3. The detokenizer is a process of its own. From the last figure: by how much would a turn of rank 0 grow if it did
#    the detokenizing itself? What would that hide or not hide behind the forward of a GPU?
# 4. Era `broadcast` and `rpyc` run up to ten decode steps a turn when nobody streams. Requests here stream. Look up
#    in `python -m evolution history eras` what that changes, and predict the right-hand bars without streaming.
