"""What `python -m evolution bench` runs: one small program per figure.

Each module has `add_arguments(parser)`, `run(options) -> dict` (the result file, without the environment) and
`show(result)`, which prints it. One with a picture has NAME_plot beside it: `draw(result, folder)` and a CAPTION. Arms
are measured in turn (A B C A B C ...) and ratios are of the pairs. A result's `verdict` is "holds", "undecided" or
"fails", judged by intervals, or None where there is no bound to keep.
"""
