"""`python -m evolution compare`: the stages side by side, arm by arm in turn, into a folder that `report` draws from.

```
DIR/plan.json    what was asked for: arms, repeats, workload, settings, environment
DIR/runs.jsonl   one line per run, an engine's whole life: started, warmed up, measured, stopped
```
"""
