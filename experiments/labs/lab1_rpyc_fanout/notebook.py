# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3}
# ---

# %% [markdown]
# # Lab 1: what a call costs
#
# **Question.** A router calls every rank once a turn. How many messages is that, and when does a call over TCP take
# 40 ms in place of a tenth of one?
#
# **Predict first.** Write it down before you run anything:
#
# 1. By reference, how many messages does each further rank add to what the router sends in a step?
# 2. A call with 60,000 bytes takes about 0.2 ms. How long does one with 70,000 take? One with 1,000,000?
# 3. What of that does TCP_NODELAY change? What does one `sendall` for each frame change?
#
# The ranks are those of the lab, with the engine's own servers and clients; your channel and your formulas are drawn as
# soon as they are written. It takes about half a minute.

# %%
import importlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from matplotlib import pyplot as plt
from rpyc.core.channel import Channel

from experiments.intervals import median_interval, pairwise_ratio, remark, shown

# %% tags=["parameters"]
LAB = "experiments.labs.lab1_rpyc_fanout"
SIZES = [1_000, 20_000, 63_000, 65_000, 100_000, 120_000, 1_000_000]
RANKS = [1, 2, 4]

# %%
truth = importlib.import_module(f"{LAB}.truth")
adapters = importlib.import_module(f"{LAB}.adapters")


def written(task, attempt):
    """Whether the solution has it."""
    try:
        attempt()
    except NotImplementedError:
        print(f"not drawn until task {task} is written")
        return False
    return True


# %% [markdown]
# ## Messages of a step
#
# *What the router sends in one step, by the number of ranks: counted (dots), and as your formula says (lines).*

# %%
HOWS = {"value": "tab:blue", "reference": "tab:red"}
with ThreadPoolExecutor(1) as other:  # the engine's client has an event loop, and so has this notebook's thread
    counts = {
        (how, ranks): other.submit(truth.engine_counts, how, ranks, truth.some_requests(20)).result()[0]
        for how in HOWS
        for ranks in RANKS
    }
has_formula = written("1c", lambda: adapters.messages_of_a_step("value", 1))
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for how, colour in HOWS.items():
    left.plot(RANKS, [counts[how, ranks].messages for ranks in RANKS], "o", color=colour, label=f"by {how}")
    right.plot(RANKS, [counts[how, ranks].bytes for ranks in RANKS], "o-", color=colour, label=f"by {how}")
    if has_formula:
        left.plot(RANKS, [adapters.messages_of_a_step(how, ranks)[0] for ranks in RANKS], "-", color=colour, alpha=0.5)
for axes, what in ((left, "messages"), (right, "bytes")):
    axes.set_xticks(RANKS)
    axes.set_xlabel("ranks")
    axes.set_ylabel(f"{what} of the router in a step")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)

# %% [markdown]
# ## A call over TCP, by size
#
# *One rank, Nagle's algorithm on unless it says otherwise. Each dot is a call; the line goes through the medians. Both
# axes are logarithmic.*

# %%
WAYS = {"rpyc's channel": (Channel, None)}
if written("1e", lambda: truth.sends(adapters.whole_frames(), 1)):
    WAYS["whole frames"] = (adapters.whole_frames(), None)
    WAYS["rpyc's channel, tuned"] = (Channel, adapters.tune)
took = {
    (way, size): truth.call_times(channel, bytes(size), tune) for way, (channel, tune) in WAYS.items() for size in SIZES
}
figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
for way, marker in zip(WAYS, "osD", strict=False):
    samples = np.array([took[way, size] for size in SIZES]) * 1e3
    (drawn,) = axes.plot(SIZES, np.median(samples, axis=1), "-", label=way)
    axes.plot(np.repeat(SIZES, samples.shape[1]), samples.ravel(), marker, color=drawn.get_color(), ms=3, alpha=0.4)
axes.set_xscale("log")
axes.set_yscale("log")
axes.set_xlabel("bytes of the payload")
axes.set_ylabel("ms of a call")
axes.grid(alpha=0.3)
axes.legend(frameon=False)

# %% [markdown]
# ## What these intervals allow

# %%
for way in WAYS:
    for size in SIZES:
        low, high = median_interval(took[way, size])
        print(f"{way}, {size:,} bytes: {np.median(took[way, size]) * 1e3:.2f} ms [{low * 1e3:.2f}, {high * 1e3:.2f}]")
for way in list(WAYS)[1:]:
    for size in SIZES:
        ratio = pairwise_ratio(took["rpyc's channel", size], took[way, size])
        print(f"{size:,} bytes: rpyc's channel over {way}: {shown(ratio)} {remark(ratio)}")

# %% [markdown]
# ## Exercises
#
# 1. Compare with what you predicted. Which of the two sizes around the step did you have wrong, and which `send` of the
#    frame is held back there?
# 2. At 1,000,000 bytes some calls are held back and some are not. What differs between them? (Which piece is the last
#    one, and what is not acknowledged yet when it comes?)
# 3. Repeat the second figure with `os.urandom(size)` and with a channel that compresses: where is the step now, and
#    why?
# 4. The router of v0.1.5 called over TCP as here, and slept 30 ms after each turn with output. Which of the two would
#    you have noticed first?
