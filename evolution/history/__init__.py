"""How SGLang's processes changed, release by release: what `python -m evolution history` and `claims` print.

```
*.json        the facts, each with lines of a release or with the number of a pull request or issue
data.py       their types
trees.py      the processes of each release, for any TP, DP and PP
tables.py     what is printed
releases.py   the files of a release, out of its wheel or a clone's tag
verify.py     the facts against those files; clone.py: against a clone's commits
answers/      the self-test's questions and the exercises, each with something that runs
pictures.py   the three stages and the strip; drawing.py: boxes and arrows
```
"""
