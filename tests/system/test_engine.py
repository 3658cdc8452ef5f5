"""Engine as people use it: from a script, with and without a guard, from threads, twice on one host."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from evolution import Engine, EngineError
from tests.conftest import names_left_on_disk, run_folders

TINY = {"model_path": "tiny", "max_total_tokens": 1024}
GREEDY = {"max_new_tokens": 8, "temperature": 0}


def run_script(folder: Path, text: str, timeout: float = 60) -> subprocess.CompletedProcess:
    script = folder / "script.py"
    script.write_text(text)
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=timeout, env=env, check=False
    )


@pytest.fixture(scope="module")
def engine():
    with Engine(stage="peer", **TINY) as engine:
        yield engine


def test_one_prompt_gives_a_dict_and_a_list_gives_a_list(engine):
    one = engine.generate("Hello", GREEDY)
    assert set(one) == {"text", "output_ids", "meta_info"}
    assert set(one["meta_info"]) == {
        "id",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "e2e_latency",
    }
    assert len(one["output_ids"]) == one["meta_info"]["completion_tokens"]
    several = engine.generate(["Hello", "Hello"], [GREEDY, {**GREEDY, "max_new_tokens": 3}])
    assert several[0]["output_ids"] == one["output_ids"]
    assert several[1]["output_ids"] == one["output_ids"][:3]


def test_seeds_count_up_from_random_seed(engine):
    params = {"max_new_tokens": 8, "temperature": 1.0}
    two = engine.generate(["Hello", "Hello"], params)
    assert two[0]["output_ids"] != two[1]["output_ids"]
    second = engine.generate("Hello", {**params, "seed": engine.args.random_seed + 1})
    assert second["output_ids"] == two[1]["output_ids"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either a prompt or input_ids"),
        ({"prompt": "a", "input_ids": [1]}, "either a prompt or input_ids"),
        ({"prompt": ""}, "non-empty string"),
        ({"prompt": []}, "non-empty list"),
        ({"prompt": ["a", ""]}, "non-empty string"),
        ({"prompt": [7]}, "non-empty string"),
        ({"input_ids": []}, "non-empty list"),
        ({"input_ids": [[1], []]}, "empty"),
        ({"input_ids": [[1], 2]}, "mixes"),
        ({"input_ids": [1, "a"]}, "'a'"),
        ({"input_ids": [2**63]}, str(2**63)),
        ({"prompt": "a", "sampling_params": [{}, {}]}, "list of 2 for 1"),
        ({"prompt": "a", "image_data": "x"}, "image_data must be bytes"),
        ({"prompt": "\ud83d"}, "surrogate"),
        ({"prompt": "a", "sampling_params": {"n": 0}}, "n is 0; allowed: a whole number from 1"),
        ({"prompt": "a", "sampling_params": {"regex": "a+"}}, "constrained output is out of scope"),
        ({"prompt": "a", "return_logprob": "yes"}, "return_logprob is 'yes'"),
        ({"prompt": "a", "return_logprob": [True, True]}, "return_logprob is a list of 2 for 1"),
        ({"input_ids": [1, 2], "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len is 2"),
        ({"prompt": "a", "return_logprob": True, "top_logprobs_num": 101}, "top_logprobs_num is 101"),
    ],
)
def test_bad_calls_raise_one_line_and_leave_the_engine_serving(engine, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        engine.generate(**arguments)
    assert "\n" not in str(caught.value)
    assert engine.generate("a", GREEDY)["output_ids"]


def test_stop_string_across_token_borders(engine):
    whole = engine.generate("Hello", {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True})
    text = whole["text"]
    stop = text[10:13]
    cut = engine.generate("Hello", {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True, "stop": stop})
    assert cut["text"] == text[: text.index(stop)]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_a_stop_string_that_is_a_special_token(engine):
    """With skip_special_tokens off its text is part of the output, so it can be stopped at."""
    fields = {"max_new_tokens": 400, "temperature": 3.0, "seed": 5, "ignore_eos": True, "skip_special_tokens": False}
    whole = engine.generate("Hello", fields)["text"]
    assert "<|eos|>" in whole
    cut = engine.generate("Hello", {**fields, "stop": "<|eos|>"})
    assert cut["text"] == whole[: whole.index("<|eos|>")]


def test_a_dropped_stream_aborts_its_request(engine):
    results = engine.generate("Hello", {"max_new_tokens": 900, "ignore_eos": True}, stream=True)
    next(results)
    results.close()
    wait_for(lambda: engine.stats()[0]["running"] == 0, timeout=2)
    assert engine.generate("Hello", GREEDY)["output_ids"]


def test_abort_takes_a_string(engine):
    with pytest.raises(ValueError, match="rid must be a string"):
        engine.abort(123)
    assert engine.generate("Hello", GREEDY)["output_ids"]


@pytest.mark.parametrize(
    "settings", [{"chunked_prefill_size": "x"}, {"random_seed": None}, {"stage": 5}, {"disable_radix_cache": "no"}]
)
def test_settings_of_a_wrong_type(settings):
    with pytest.raises(ValueError, match="must be of type") as caught:
        Engine(model_path="tiny", **settings)
    assert "\n" not in str(caught.value)


def test_a_forked_process_that_ends_leaves_the_engine_alone(engine):
    if os.fork() == 0:
        try:
            engine.shutdown()
        finally:
            os._exit(0)
    os.wait()
    assert engine.generate("Hello", GREEDY)["output_ids"]


def test_an_engine_leaves_no_open_files():
    counts = []
    for _ in range(3):
        with Engine(model_path="tiny"):
            pass
        counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    assert counts[2] <= counts[0]


def test_a_stage_that_starts_nothing_is_an_error_at_once(tmp_path, monkeypatch):
    (tmp_path / "lazy_stage.py").write_text("def launch(args, endpoints, supervisor): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EngineError, match="started no process"):
        Engine(model_path="tiny", stage="lazy_stage:launch")


def test_shutdown_from_several_threads(nothing_left_behind):
    other = Engine(**TINY)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(other.shutdown) for _ in range(4)]:
            future.result(20)


def test_deaths_are_noticed_with_sigchld_ignored(tmp_path):
    script = (
        "import os, signal\n"
        "from evolution import Engine, EngineError\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "    engine = Engine(model_path='tiny')\n"
        "    stream = engine.generate('Hello', {'max_new_tokens': 1500, 'ignore_eos': True}, stream=True)\n"
        "    next(stream)\n"
        "    os.kill(engine.processes[-1].pid, signal.SIGKILL)\n"
        "    try:\n"
        "        list(stream)\n"
        "    except EngineError as error:\n"
        "        print(error)\n"
    )
    result = run_script(tmp_path, script)
    assert "evo-peer TP0" in result.stdout, result.stderr


def test_closed_standard_streams(tmp_path):
    command = f"{sys.executable} -m evolution run --model-path tiny --prompt a --json {tmp_path}/r.json >&- 2>&- <&-"
    assert subprocess.run(["bash", "-c", command], timeout=60, check=False).returncode == 0
    assert (tmp_path / "r.json").stat().st_size > 0


def test_a_result_may_be_asked_for_twice(engine):
    (stream,) = engine.submit(engine.make_requests(["Hello"], GREEDY)[1])
    assert stream.result() == stream.result()


def test_unknown_setting_names_those_there_are():
    with pytest.raises(ValueError, match="no setting 'tensor_size'.*tp_size"):
        Engine(tensor_size=2)


def test_from_a_script(tmp_path):
    script = (
        "from evolution import Engine\n"
        "if __name__ == '__main__':\n"
        "    with Engine(model_path='tiny', tp_size=2) as engine:\n"
        f"        print(engine.generate('Hello', {GREEDY})['output_ids'])\n"
    )
    result = run_script(tmp_path, script)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)) == 8
    assert result.stderr == ""


def test_from_a_notebook(tmp_path):
    """As in a notebook: `__main__` has no file, cells run inside a running event loop, and there is no guard."""
    cells = (
        "import asyncio\n"
        "async def cell():\n"
        "    from evolution import Engine\n"
        "    with Engine(model_path='tiny', tp_size=2, stage='rpyc') as engine:\n"
        f"        return engine.generate('Hello', {GREEDY})['output_ids']\n"
        "print(asyncio.run(cell()))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-"]
    result = subprocess.run(command, input=cells, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)) == 8


def test_a_script_that_forgets_to_shut_down_still_ends(tmp_path):
    script = (
        "from evolution import Engine\n"
        "if __name__ == '__main__':\n"
        "    engine = Engine(model_path='tiny')\n"
        f"    print(engine.generate('Hello', {GREEDY})['output_ids'])\n"
    )
    result = run_script(tmp_path, script)
    assert result.returncode == 0, result.stderr


def test_a_missing_main_guard_is_a_clear_error_not_a_fork_bomb(tmp_path, nothing_left_behind):
    script = "from evolution import Engine\nengine = Engine(model_path='tiny')\nprint('started')\n"
    result = run_script(tmp_path, script)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "put the code that uses Engine under `if __name__ == '__main__':`" in result.stderr
    assert result.stderr.count("Traceback") == 1


def test_from_a_pool_thread(nothing_left_behind):
    def use() -> list[int]:
        with Engine(stage="broadcast", tp_size=2, **TINY) as engine:
            return engine.generate("Hello", GREEDY)["output_ids"]

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(use).result(60)
    assert len(first) == 8


def test_two_engines_at_once_do_not_notice_each_other(engine):
    with Engine(stage="rpyc", tp_size=2, **TINY) as other:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            both = [pool.submit(e.generate, ["Hello"] * 8, GREEDY) for e in (engine, other)]
        first, second = (future.result() for future in both)
    assert [r["output_ids"] for r in first] == [r["output_ids"] for r in second]


def test_calls_from_many_threads(engine):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: engine.generate(input_ids=[i, i], sampling_params=GREEDY), range(32)))
    alone = engine.generate(input_ids=[31, 31], sampling_params=GREEDY)
    assert results[31]["output_ids"] == alone["output_ids"]


def test_shutdown_fails_what_is_pending_and_what_comes_later(nothing_left_behind):
    engine = Engine(**TINY)
    results = engine.generate("Hello", {"max_new_tokens": 900, "ignore_eos": True}, stream=True)
    next(results)
    engine.shutdown()
    with pytest.raises(EngineError, match="was shut down"):
        list(results)
    with pytest.raises(EngineError, match="was shut down"):
        engine.generate("Hello")
    engine.shutdown()


KILLS = [
    ("running", signal.SIGINT),
    ("running", signal.SIGKILL),
    pytest.param("running", signal.SIGTERM, marks=pytest.mark.slow),
    pytest.param("starting", signal.SIGINT, marks=pytest.mark.slow),
    pytest.param("starting", signal.SIGTERM, marks=pytest.mark.slow),
    pytest.param("starting", signal.SIGKILL, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("when", "kill"), KILLS)
def test_nothing_survives_the_main_process(stage, kill, when):
    """ctrl-C and SIGTERM end `run` in order, SIGKILL without a word: no process, file or shared memory remains."""
    before = names_left_on_disk()
    command = [sys.executable, "-m", "evolution", "run", "--stage", stage, "--model-path", "tiny"]
    command += ["--tp-size", "2", "--dp-size", "2", "--num-prompts", "4", "--output-len", "1900"]
    # A session of its own, so that SIGINT reaches the whole group as ctrl-C in a terminal does; SIGINT not ignored,
    # as it is when the tests themselves run in the background.
    main = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    started = psutil.Process(main.pid)
    wait_for(lambda: len(started.children(recursive=True)) >= (2 if when == "starting" else 7))
    if when == "running":
        wait_for(lambda: not run_folders())  # removed once all are connected
    children = started.children(recursive=True)
    if kill == signal.SIGINT:
        os.killpg(main.pid, kill)
    else:
        main.send_signal(kill)
    error = main.stderr.read()
    main.stderr.close()
    status = main.wait(10)
    assert status == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[kill], error
    if kill != signal.SIGKILL:
        assert "Traceback" not in error
    _, alive = psutil.wait_procs(children, timeout=3)
    assert not alive
    if kill == signal.SIGKILL and when == "starting":
        Engine(**TINY).shutdown()  # the next start sweeps the run folder of one killed while starting
    assert names_left_on_disk() - before == set()


def wait_for(condition, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the processes did not come up"
        time.sleep(0.05)
