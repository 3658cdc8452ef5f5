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
from collections import Counter

import numpy as np

from common.tracing import PARTS
from experiments.compare.metrics import TIMES, leaders
from experiments.intervals import median_interval
from experiments.notebooks.shared import COLOURS, bars, comparison, in_words, subplots, table
from report.comparison import ratio, stage_pairs

# %% tags=["parameters"]
MEASURE = False
RESULTS = "compare-sim"
FRESH = ["--device", "sim", "--tp-size", "2", "--constants", "level,era", "--repeats", "3", "--rounds", "1"]

# %%
plan, runs = comparison(MEASURE, RESULTS, FRESH)
TP = max(arm.tp_size for arm in plan.arms)
ARMS = [arm for arm in plan.arms if (arm.tp_size, arm.dp_size) == (TP, 1)]
LEVEL = [arm for arm in ARMS if arm.constants == "level"]
TURN, FORWARD, CONTROL = (
    next(metric for metric in TIMES if metric.name == name)
    for name in ("turn", "forward of a turn", "control plane of a turn")
)
IN_FORWARD = ("prepare", "forward", "sample")
WAITS = ("idle",)
# What a reader may wait for in grey, the forward in blue, the rest from light to dark along the turn.
NAMES = [name for name in PARTS if name not in ("idle", "tokenize")]
COLOUR = {"forward": "#4c78a8", "prepare": "#88aacc", "sample": "#a8c4e0", "wait_for_router": "#d9d9d9",
          "pacing_sleep": "#eeeeee", "other": "#8c8c8c", "transport": "#d55e00", "encode": "#f0a35e",
          "decode": "#f6cfa5", "recv_requests": "#f2e2a0", "process_input_requests": "#b5d99c",
          "get_next_batch_to_run": "#55a868", "process_batch_result": "#8172b2", "send_output": "#c44e52",
          "detokenize": "#937860"}  # fmt: skip

# %% [markdown]
# ## One turn, process by process
#
# *The turn of rank 0 that is the median by length, in one run of each stage with level constants; time runs to the
# right from its beginning. White: the thread waits for work. One turn is an illustration, no measurement: the next
# figure has all of them.*

# %%
figure, grid = subplots(len(LEVEL), 1, size=(11, 2.3 * len(LEVEL)), squeeze=False)
seen = {}
for axes, arm in zip(grid[:, 0], LEVEL, strict=True):
    run = next(run for run in runs if run.arm == arm and run.strip)
    strips = [strip for strip in run.strip if any(name != "idle" for name, _, _ in strip.parts)]
    for place, strip in enumerate(strips):
        for name, begin, end in strip.parts:
            if name != "idle":
                drawn = axes.broken_barh([(begin, end - begin)], (-place - 0.4, 0.8), color=COLOUR.get(name, "#333333"))
                seen.setdefault(name, drawn)
    axes.set_yticks([-place for place in range(len(strips))], [f"{strip.process} {strip.thread}" for strip in strips])
    axes.set_xlabel("us since the turn of rank 0 began")
    axes.set_title(arm.name, loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
order = [name for name in NAMES if name in seen]
legend = figure.legend([seen[name] for name in order], order, loc="outside right upper", frameon=False, fontsize=8)

# %% [markdown]
# ## Where rank 0's turn goes
#
# *Wall time of a working turn of rank 0, by part: the mean over the turns of a run, then the median over the repeats.
# Left: of a turn, level constants. Right: of an output token, where a burst of decode steps shares one turn's cost.
# Waiting for work is left out. What an rpyc rank waits for the router between two calls is all that the rank cannot
# see: transport, the router's own work, and an era's sleeps.*


# %%
def parts_of(arm, per_token):
    rows = []
    for run in runs:
        if run.arm == arm and leaders(run):
            total = Counter()
            for turns in leaders(run):
                total.update({name: wall for name, (wall, _) in turns.parts.items()})
            divisor = run.output_tokens if per_token else sum(turns.working for turns in leaders(run))
            rows.append({name: wall / divisor for name, wall in total.items()})
    return {name: float(np.median([row.get(name, 0) for row in rows])) for name in NAMES if name not in WAITS}


figure, grid = subplots(1, 2, size=(13, 4))
for axes, arms, per_token in ((grid[0], LEVEL, False), (grid[1], ARMS, True)):
    found = [parts_of(arm, per_token) for arm in arms]
    lefts = np.zeros(len(arms))
    for name in found[0]:
        widths = np.array([parts[name] for parts in found])
        label = name if widths.any() else None
        axes.barh(range(len(arms)), widths, left=lefts, color=COLOUR.get(name, "#333333"), label=label)
        lefts += widths
    axes.set_yticks(range(len(arms)), [f"{arm.stage} {arm.constants}\n{arm.scheduling}" for arm in arms])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"us per {'output token' if per_token else 'turn'} (wall time of rank 0)")
    axes.spines[["top", "right"]].set_visible(False)
drawn, names = grid[1].get_legend_handles_labels()
legend = figure.legend(drawn, names, loc="outside right upper", frameon=False, fontsize=8)

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
        / sum(wall for turns in leaders(run) for name, (wall, _) in turns.parts.items() if name not in WAITS)
        for run in mine
    ]
    low, high = median_interval(shares)
    times = [float(np.median([metric.of(run) for run in mine])) for metric in (TURN, FORWARD, CONTROL)]
    share = f"{np.median(shares):.1%} [{low:.1%}, {high:.1%}]"
    rows.append([f"{arm.stage} {arm.constants}", *times, share, f"{np.median(others):.1%}"])
table(["", "turn, us", "forward, us", "control plane, us", "share of the turn", "other"], rows)

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
for metric in (TURN, FORWARD, CONTROL):
    for above, below in stage_pairs(plan):
        if above in LEVEL:
            one = ratio(metric, above, below, runs)
            if one:
                print(f"{metric.name}: {above.stage} over {below.stage}: {in_words(one.ratio)}")
largest = {arm.name: max((p for p in parts_of(arm, False).items() if p[0] not in IN_FORWARD), key=lambda p: p[1])
           for arm in LEVEL}  # fmt: skip
for name, (part, wall) in largest.items():
    print(f"largest part outside the forward, {name}: {part}, {wall:.0f} us")

# %% [markdown]
# A part's *length* is what rank 0 sees. `transport` of a lock-step broadcast holds the waiting for the slowest rank,
# so a long one does not mean that moving the bytes is slow.
#
# ## Exercises
#
# 1. `python -m evolution trace --stage peer --tp-size 2 --device sim --num-prompts 16 --out trace.json`, and open the
#    file in ui.perfetto.dev. Find the turn in which the prompts come in. Which part is longer there than in a decode
#    turn?
# 2. In the second figure `rpyc` plans on rank 0 and sends the plan. Where in its turn is the second call? Add
#    `"--scheduling", "replicated"` to `FRESH` and see which part goes away.
# 3. The detokenizer is a process of its own. From the last figure: by how much would a turn of rank 0 grow if it did
#    the detokenizing itself? What would that hide or not hide behind the forward of a GPU?
# 4. Era `broadcast` and `rpyc` run up to ten decode steps a turn when nobody streams. Requests here stream. Look up
#    in `python -m evolution history eras` what that changes, and predict the right-hand bars without streaming.
