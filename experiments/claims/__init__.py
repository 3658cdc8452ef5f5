"""The trials of the chapter's claims: what is predicted of each, and the run that measures it.

```
bounds.py      a prediction: counts and ratios with their bounds; what samples say of it
trial.py       a trial, its outcome, and running it
once.py, lives.py, spinning.py, mechanisms.py    what several trials look at, measured once
rpc.py, broadcast.py, scheduling.py, dispatch.py, processes.py, idle.py, determinism.py, deaths.py    the trials
table.py       what is printed
```

A trial belongs to the claim of `evolution/history/claims.json` that has its number.
"""

from __future__ import annotations

from experiments.claims import broadcast, deaths, determinism, dispatch, idle, processes, rpc, scheduling
from experiments.claims.trial import Trial

THEMES = (rpc, broadcast, scheduling, dispatch, processes, idle, determinism, deaths)
TRIALS: dict[int, Trial] = {
    trial.number: trial for trial in sorted((one for theme in THEMES for one in theme.TRIALS), key=lambda t: t.number)
}
