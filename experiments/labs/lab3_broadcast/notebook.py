# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # Lab 3: what a large message costs
#
# **Question.** Every rank must have a request before it can compute. How long does that take, by the size of the
# request and by its encoding?
#
# **Predict first.** Write it down before you run anything:
#
# 1. How long until both ranks have an image of 4 MiB: as a buffer, as a list of ints? (A copy of 4 MiB in memory takes
#    about 1 ms.)
# 2. From which size on does the time grow in proportion to the size? What is it made of below that?
# 3. Which is faster for 1 KiB? By how much?
#
# Two ranks, real gloo, the engine's own `MessageBroadcast` with the encodings of three eras; and with yours, once it is
# written. It takes about half a minute.

# %%
import importlib

import numpy as np
from matplotlib import pyplot as plt

from experiments.intervals import median_interval, pairwise_ratio, remark, shown

# %% tags=["parameters"]
LAB = "experiments.labs.lab3_broadcast"
SIZES = [1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20]
REPEATS = 7

# %%
measure = importlib.import_module(f"{LAB}.measure")
encodings = measure.encodings()
if measure.YOURS not in encodings:
    print("your encoding is not written yet: it is drawn when task 3f is done")
seconds = measure.seconds(SIZES, encodings, REPEATS)


def label(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def draw(value, axis):
    """value(size, seconds): what is drawn of each sample."""
    figure, axes = plt.subplots(figsize=(8, 4.4), layout="constrained")
    for name, marker in zip(encodings, "sovD", strict=False):
        samples = [[value(size, one) for one in seconds[name, size]] for size in SIZES]
        medians = np.array([np.median(one) for one in samples])
        low, high = np.array([median_interval(one) for one in samples]).T
        axes.errorbar(SIZES, medians, yerr=[medians - low, high - medians], marker=marker, capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(SIZES, [label(size) for size in SIZES], rotation=30)
    axes.set_xlabel("size of the image")
    axes.set_ylabel(axis)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


# %% [markdown]
# ## Time against size
#
# *From the call of `send` on rank 0 until the other rank holds the message. Both axes are logarithmic: a slope of 1 is
# proportional to the size. Medians with intervals.*

# %%
draw(lambda size, one: one * 1e3, "ms until the other rank has it")

# %% [markdown]
# ## The same as a rate
#
# *Bytes of the image per second. Where a line is flat, the size decides; where it rises, what each message costs
# whatever its size.*

# %%
draw(lambda size, one: size / one / 1e6, "MB/s")

# %% [markdown]
# ## What these intervals allow

# %%
for size in SIZES:
    for name in encodings[1:]:
        ratio = pairwise_ratio(seconds[encodings[0], size], seconds[name, size])
        print(f"{label(size)}: {encodings[0]} over {name}: {shown(ratio)} {remark(ratio)}")

# %% [markdown]
# ## Exercises
#
# 1. Compare with what you predicted. Where were you wrong by more than a factor of 3, and why?
# 2. What is the smallest message worth sending in one broadcast in place of two (part 5)? Estimate it from the left end
#    of the first figure.
# 3. With three ranks (`measure.seconds(..., ranks=3)`): does the time double? Who decodes when?
# 4. A decode turn of this engine takes about 5 ms on a GPU. Which line crosses that, and at which size?
