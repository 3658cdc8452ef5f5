# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # 3. What an image costs
#
# **Question.** A prompt of 1,000 tokens is 4 KB; an image of a multimodal request is a megabyte. Every rank must have
# it before it can compute. What does that cost, by size, and by how the bytes are encoded? SGLang 0.2.0 turned the
# pickle into a Python *list of ints*, one for each byte; 0.3.3 sends it as a *buffer*.
#
# **Predict first.** For an image of 4 MiB and two ranks:
#
# 1. How long until both ranks have it: as a buffer, as a list of ints? (A memory copy of 4 MiB takes about 1 ms.)
# 2. From which size on does the time grow in proportion to the size?
# 3. How many bytes travel in all? Is it the size, twice the size, more?
# 4. The same image comes again, and only its hash is sent. By what factor is that faster?
#
# **Data.** `bench image`: whole engines at two ranks on the simulated accelerator, requests with random bytes as an
# image. With `MEASURE = True`: about 3 minutes on two cores.

# %%
import numpy as np

from experiments.intervals import pairwise_ratio
from experiments.notebooks.shared import (
    COLOURS,
    bench_result,
    in_words,
    line,
    log_scale,
    points,
    ratio_rows,
    subplots,
    table,
    tidy,
)
from report.pictures.forest import add_legend
from report.pictures.style import OTHER_STAGE, stage_style

# %% tags=["parameters"]
MEASURE = False
RESULTS = "image.json"
FRESH = ["image", "--repeats", "3"]

# %%
result = bench_result(MEASURE, RESULTS, FRESH)
CELLS = {(cell["stage"], cell["constants"], cell["size"]): cell for cell in result["cells"]}
ARMS = list(dict.fromkeys((stage, constants) for stage, constants, _ in CELLS))
SIZES = {name: size for name, size in result["sizes"].items() if name != "hash"}
LARGEST = "4 MiB" if "4 MiB" in SIZES else max(SIZES, key=SIZES.get)
HOW = {("broadcast", "era"): "list of ints", ("peer", "era"): "buffer", ("broadcast", "level"): "msgpack",
       ("peer", "level"): "msgpack", ("rpyc", "era"): "by reference", ("rpyc", "level"): "by value"}  # fmt: skip
print(f"{result['repeats']} rounds; sizes: {', '.join(SIZES)}")


def medians(stage, constants, size, part):
    """ms, one for each round"""
    return [float(np.median(one)) * 1e3 for one in CELLS[stage, constants, size][part]]


# %% [markdown]
# ## What travels
#
# Two hops: from the main process to the stage, and from there to the ranks. A count above 1 for the hop to the ranks
# means that it is encoded to more bytes, or goes to several.

# %%
rows = []
for stage, constants in ARMS:
    cell = CELLS[stage, constants, LARGEST]
    per_byte = [count / SIZES[LARGEST] for count in cell["bytes"]]
    rows.append([f"{stage} {constants}", HOW[stage, constants], *per_byte, *cell["messages"]])
names = ["bytes to the stage, times the image", "to the ranks, times the image", "messages", "messages to the ranks"]
table([f"an image of {LARGEST}", "to the ranks as", *names], rows)

# %% [markdown]
# ## Time against size
#
# *Left: time from the hand-over in the main process until the last rank has taken the request in. Right: CPU time of
# all processes, until the request's only token is there. Both axes are logarithmic: a slope of 1 is proportional to
# the size. Medians of the rounds with intervals. Dashed: era constants.*

# %%
figure, grid = subplots(1, 2, size=(13, 4.6))
for axes, part, axis in ((grid[0], "whole", "ms until every rank has it"), (grid[1], "cpu", "CPU ms of all processes")):
    for stage, constants in ARMS:
        style = {"ls": "--" if constants == "era" else "-", "marker": "s" if constants == "era" else "o"}
        samples = [medians(stage, constants, size, part) for size in SIZES]
        label = f"{stage} {constants} ({HOW[stage, constants]})"
        line(axes, list(SIZES.values()), samples, color=COLOURS[stage], label=label, **style)
    axes.set_xscale("log", base=2)
    log_scale(axes)
    axes.set_xticks(list(SIZES.values()), list(SIZES), rotation=30)
    axes.set_xlabel("size of the image")
    axes.set_ylabel(axis)
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)

# %% [markdown]
# ## A list of ints over a buffer
#
# *The era of `broadcast` (0.2.0, list of ints, TCP) over the era of `peer` (0.4.0, buffer, ipc), round by round, with
# intervals. `distribute` is only the way from rank 0 to the ranks. The two versions differ in more than the
# encoding: also in the channel to the stage. The level constants of both stages, over each other, show what the
# process model adds.*

# %%
rows = []
if {("broadcast", "era"), ("peer", "era")} <= set(ARMS):
    for part in ("distribute", "whole", "cpu"):
        for size in SIZES:
            ratio = pairwise_ratio(medians("broadcast", "era", size, part), medians("peer", "era", size, part))
            rows.append((f"{part}, {size}", ratio, stage_style("broadcast")))
    for size in SIZES:
        level = [medians(stage, "level", size, "distribute") for stage in ("broadcast", "peer")]
        rows.append((f"distribute, {size}, both level", pairwise_ratio(*level), OTHER_STAGE))
    figure, axes = subplots(size=(9, 1 + 0.26 * len(rows)))
    ratio_rows(axes, rows, "broadcast over peer (ratio, log scale); era: list of ints over buffer")
    add_legend(figure)

# %% [markdown]
# ## The same image again
#
# *Time until every rank has the request: with the bytes of the image, and with the 32 bytes of its hash in their
# place (log scale; medians with intervals). It is the price of the message alone: keeping images on the ranks and
# looking them up by hash is not built here, nor is computing the hash (SHA-256, before the hand-over) in these times.*

# %%
figure, axes = subplots(size=(10, 3.8))
for place, (size, label) in enumerate(((LARGEST, f"bytes of {LARGEST}"), ("hash", "its hash alone"))):
    samples = [medians(stage, constants, size, "whole") for stage, constants in ARMS]
    x = [number + 0.2 * (place - 0.5) for number in range(len(ARMS))]
    points(axes, x, samples, color=("#0072b2", "#777777")[place], marker="os"[place], label=label)
log_scale(axes)
axes.set_xticks(range(len(ARMS)), [f"{stage} {constants}\n{HOW[stage, constants]}" for stage, constants in ARMS])
axes.set_ylabel("ms until every rank has it")
axes.legend(frameon=False)
tidy(axes)

# %% [markdown]
# ## What these intervals allow

# %%
for label, ratio, _ in rows:
    print(f"broadcast over peer, {label}: {in_words(ratio)}")
for stage, constants in ARMS:
    image, digest = (medians(stage, constants, size, "whole") for size in (LARGEST, "hash"))
    print(f"{stage} {constants}: {LARGEST} over its hash alone: {in_words(pairwise_ratio(image, digest))}")

# %% [markdown]
# On a slow copy everything is slower, so on another machine the times differ. That a list of ints costs a slot of 8
# bytes and a conversion for each byte, on the way out and on the way in, and a buffer neither, is the same everywhere.
# (The ints themselves cost nothing: Python has those from 0 to 255 ready.) What a *factor* is worth depends on how
# often images come.
#
# ## Exercises
#
# 1. How long may a forward be for the era's list of ints to be hidden behind it? Compare the left figure at 1 MiB
#    with the turn of notebook 2. Can it be hidden at all? (Who waits in a lock-step broadcast?)
# 2. How much memory does a rank need for the list of ints of an image of 4 MiB, at 8 bytes a slot? How much would it
#    be if each of them were an object of its own, of 28 bytes?
# 3. At which size is an image as expensive as a prompt of 1,000 tokens (4 KB)? Read it off the left figure.
# 4. `--scheduling rank0` sends the *plan* to the other ranks, not the request. What would become of the image then?
#    Would it be right for a model whose vision tower is sharded too?
# 5. The same image again: where would you keep it, on rank 0 or on every rank, and who decides that it may go?
