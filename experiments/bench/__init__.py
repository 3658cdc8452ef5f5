"""What `python -m evolution bench` runs: one small program per figure.

Each module has `add_arguments(parser)`, `run(options) -> dict` (the result file, without the environment) and
`show(result)`, which prints it. Arms are measured in turn (A B C A B C ...); `compare` makes ratios of the pairs.
"""
