# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # 1. Three process models side by side
#
# **Question.** SGLang has handed requests to its tensor-parallel ranks in three ways: a router that calls them
# (`rpyc`), a rank 0 that lives in the control process and broadcasts (`broadcast`), and schedulers that are all alike
# (`peer`). Everything else in this project is the same code. What does the process model alone change?
#
# **Predict first**, and write it down:
#
# 1. How many processes does each start with 2 ranks and 1 replica? With 2 and 2?
# 2. Which sends most messages a turn? Does any of them send more *bytes*?
# 3. Is there a difference in the time per output token, with the constants level? By how many percent?
# 4. And with the constants of its era (sleeps, bursts, pickles)?
#
# **Data.** The shipped comparison, on the simulated accelerator: a forward is a wait of the predicted length, and all
# else is real. With `MEASURE = True` a smaller one runs here: about 3 minutes on two cores.

# %%
from experiments.compare.metrics import COUNTS, TIMES
from experiments.notebooks.shared import COLOURS, bars, comparison, in_words, ratio_rows, subplots, table
from report.comparison import era_pairs, ratio, stage_pairs, tokens_verdict, values
from report.pictures.forest import add_legend
from report.pictures.process_tree import nested, sockets_text, threads_text
from report.pictures.style import stage_style
from report.words import who

# %% tags=["parameters"]
MEASURE = False
RESULTS = "compare-sim"
FRESH = ["--device", "sim", "--tp-size", "1,2", "--constants", "level,era", "--repeats", "3", "--rounds", "1"]

# %%
plan, runs = comparison(MEASURE, RESULTS, FRESH)
work = plan.workload
print(f"an engine's life: {work.rounds} rounds of {work.num_prompts} requests, {work.input_len} tokens in, "
      f"{work.output_len} out; repeats: {plan.repeats}")  # fmt: skip
print("tokens:", tokens_verdict(runs))

SHAPES = list(dict.fromkeys((arm.tp_size, arm.dp_size) for arm in plan.arms))
STAGES = list(dict.fromkeys(arm.stage for arm in plan.arms))
METRICS = {metric.name: metric for metric in COUNTS + TIMES}

# %% [markdown]
# ## Who starts whom
#
# The processes as they ran, with the threads and open sockets that the operating system counted. Look for the process
# that owns the ranks, and for the one that does nothing but hand on.


# %%
shape = max(SHAPES, key=lambda shape: (shape[1] == 1, shape[0]))
for stage in STAGES:
    run = next(
        run for run in runs
        if (run.arm.stage, run.arm.constants) == (stage, "level") and (run.arm.tp_size, run.arm.dp_size) == shape
    )  # fmt: skip
    print(f"{run.arm.name}: {len(run.processes)} processes")
    for process, depth, _ in nested(run.processes):
        own = f"threads {threads_text(process.threads)}; sockets: {sockets_text(process.sockets)}; {process.role}"
        print(f"{'  ' * depth}{process.name:<{26 - 2 * depth}}{own}")
    print()

# %% [markdown]
# ## Counts before clocks
#
# Processes, messages, bytes and collectives follow from the code and the workload. Threads need not: some libraries
# start as many as there are cores. Nor need context switches: who waits for whom depends on the cores, and on what else
# runs. All is counted where it is sent: a *message* is one of ZMQ, a call or an answer of rpyc, or a broadcast, once
# for each rank that receives it; *collectives* are gloo's broadcasts, once for a replica.

# %%
names = ["processes", "threads", "messages a turn", "collectives a turn", "bytes a turn", "context switches a turn"]
MEDIANS = {(one.metric.name, one.arm): one.median for one in values(plan, runs, [METRICS[name] for name in names])}
table(
    ["level constants", *names],
    [
        [f"{arm.stage} {arm.shape}", *(MEDIANS.get((name, arm)) for name in names)]
        for arm in plan.arms
        if arm.constants == "level"
    ],
)

# %% [markdown]
# ## Processes and context switches
#
# *Left: processes by shape. Right: context switches of all threads of all processes, by turn, level constants
# (medians of the repeats, with intervals).*

# %%
figure, (left, right) = subplots(1, 2, size=(11, 3.6))
for place, stage in enumerate(STAGES):
    arms = [next(a for a in plan.arms if (a.stage, a.constants, a.tp_size, a.dp_size) == (stage, "level", *shape))
            for shape in SHAPES]  # fmt: skip
    x = [number + 0.25 * (place - 1) for number in range(len(SHAPES))]
    left.bar(x, [MEDIANS["processes", arm] for arm in arms], 0.23, color=COLOURS[stage], label=stage)
    switches = METRICS["context switches a turn"].of
    samples = [[switches(run) for run in runs if run.arm == arm] for arm in arms]
    bars(right, x, samples, 0.23, color=COLOURS[stage], label=stage)
for axes, name in ((left, "processes"), (right, "context switches a turn")):
    axes.set_xticks(range(len(SHAPES)), [f"TP {tp}\nDP {dp}" for tp, dp in SHAPES])
    axes.set_xlabel("ranks of a replica (TP), replicas (DP)")
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)

# %% [markdown]
# ## Times, as ratios
#
# *Each point is the median, over the repeats, of a stage's time over that of `peer` in the same repeat; the bar is
# the interval of that median. Left: level constants, so that only the process model differs. Right: each stage
# with its era's constants over itself with level ones. An interval that touches 1 shows no difference.
# The control plane of an rpyc rank holds its wait for the router, and so an era's sleeps.
# Filled: a difference. Hollow: the interval holds 1. Crossed: the interval is wider than the effect.*

# %%
shown_metrics = ["TPOT", "TTFT", "control plane of a turn", "CPU time a 1,000 tokens"]
pairs = [(above, below) for above, below in stage_pairs(plan) if above.constants == "level"]
pairs = [pair for pair in pairs if pair[0].dp_size == 1]
eras = [pair for pair in era_pairs(plan) if pair[0].dp_size == 1]


def rows_of(pairs):
    found = [
        (name, above, ratio(METRICS[name], above, below, runs)) for name in shown_metrics for above, below in pairs
    ]
    return [
        (f"{name}, {who(plan, above)} TP {above.tp_size}", one.ratio, stage_style(above.stage))
        for name, above, one in found
        if one
    ]


level_rows, era_rows = rows_of(pairs), rows_of(eras)
figure, (left, right) = subplots(1, 2, size=(13, 1.5 + 0.27 * max(len(level_rows), len(era_rows))))
ratio_rows(left, level_rows, "over peer, level constants (ratio, log scale)")
ratio_rows(right, era_rows, "era over level constants (ratio, log scale)")
add_legend(figure)

# %% [markdown]
# ## What these intervals allow
#
# The sentences below are made from the ratios. A ratio whose interval holds 1 is *no difference seen*, which is not
# the same as *equal*: it says that this many repeats do not tell them apart.

# %%
print("over peer, level constants:")
for label, one, _ in level_rows:
    print(f"  {label}: {in_words(one)}")
print("era over level:")
for label, one, _ in era_rows:
    print(f"  {label}: {in_words(one)}")

# %% [markdown]
# The comparison runs on one machine and on a simulated forward. Ratios of *times* on another machine will differ. A
# longer forward is added to both sides of a ratio of TPOT or of a whole turn, and brings it nearer to 1. The ratio of
# the control planes alone has no forward in it, and need not change. Processes, messages and collectives will be the
# same; threads and context switches need not.
#
# ## Exercises
#
# 1. Set `MEASURE = True` and add `"--sim-profile", "h100-llama3-8b"` to `FRESH`: a forward about ten times as long.
#    Predict each ratio over `peer` before you look.
# 2. Every rank plans here, in every stage. Add `"--scheduling", "rank0,replicated"`. Which of the counts change, and
#    why?
# 3. Draw the right-hand figure again per *turn* in place of per token (`"CPU time a turn"`). With ten decode steps a
#    turn, which one would you quote?
# 4. `python -m evolution history eras` lists the constants of each version. Guess from the figure which of them costs
#    `rpyc` most, then try `--constants era --idle block`.
