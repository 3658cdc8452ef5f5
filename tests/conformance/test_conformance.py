"""What a stage must do, whichever it is. Run it on your own: `pytest tests/conformance --stage package.module:launch`.

TP 1 and 2, abort and flush are a must; DP, rank0 scheduling, the overlap loop and era constants are tried when the
stage's SUPPORTS names them.
"""

from __future__ import annotations

import itertools
import os
import signal
import time

import psutil
import pytest

from evolution import Engine, EngineError
from evolution.stages import find_stage, process_tree, supports
from tests.conftest import descendants, names_left_on_disk
from tests.helpers.reference import Reference
from tests.helpers.workloads import mixed

WAIT = 20.0
ALL_SHAPES = list(itertools.product((1, 2), (1, 2), ("replicated", "rank0", "overlap"), ("level", "era")))
EVERY_TIME = [
    (1, 1, "replicated", "level"),
    (2, 1, "rank0", "level"),
    (2, 2, "replicated", "level"),
    (2, 1, "replicated", "era"),
    (1, 1, "overlap", "level"),
    (2, 1, "overlap", "level"),
    (1, 2, "overlap", "era"),
]
SHAPES = [pytest.param(shape, marks=[] if shape in EVERY_TIME else [pytest.mark.slow]) for shape in ALL_SHAPES]
SETTINGS = {"model_path": "tiny", "max_total_tokens": 2048, "max_running_requests": 6, "chunked_prefill_size": 64}


@pytest.fixture(scope="module")
def reference():
    return Reference(**SETTINGS)


@pytest.fixture(scope="module")
def expected_tokens(reference):
    prompts, params = mixed(24)
    return reference.generate(input_ids=prompts, sampling_params=params)


@pytest.fixture(scope="module")
def expected_logprobs(reference):
    return reference.results(**logprob_call())


@pytest.fixture(scope="module", params=SHAPES, ids=["tp{}-dp{}-{}-{}".format(*shape) for shape in ALL_SHAPES])
def engine(stage, request):
    tp, dp, scheduling, constants = request.param
    if dp > 1 and "dp" not in supports(stage):
        pytest.skip(f"{stage} does not list dp in SUPPORTS")
    if scheduling != "replicated" and scheduling not in supports(stage):
        pytest.skip(f"{stage} does not list {scheduling} in SUPPORTS")
    if constants == "era" and "era" not in supports(stage):
        pytest.skip(f"{stage} does not list era in SUPPORTS")
    shape = {"tp_size": tp, "dp_size": dp, "constants": constants, **scheduling_settings(scheduling)}
    engine = Engine(stage=stage, check_divergence=1, **shape, **SETTINGS)
    yield engine
    engine.shutdown()


def scheduling_settings(scheduling: str) -> dict:
    """`overlap` is replicated scheduling one turn ahead."""
    overlap = scheduling == "overlap"
    return {"scheduling": "replicated" if overlap else scheduling, "overlap": overlap}


def long_request(engine: Engine, count: int = 1, length: int = 600) -> list:
    params = {"max_new_tokens": length, "temperature": 0, "ignore_eos": True}
    _, requests = engine.make_requests(
        input_ids=[[7, index] for index in range(count)], sampling_params=params, stream=True
    )
    return engine.submit(requests)


def finish_of(stream) -> dict:
    assert stream.done.wait(WAIT), f"request {stream.rid} has no outcome after {WAIT} s"
    return stream.result()["meta_info"]["finish_reason"]


def idle_stats(engine: Engine) -> list[dict]:
    """Every replica's figures, none of which may show work."""
    stats = engine.stats()
    assert [(s["waiting"], s["running"]) for s in stats] == [(0, 0)] * engine.args.dp_size
    return stats


def assert_no_slot_lost(engine: Engine) -> None:
    for stats in idle_stats(engine):
        assert stats["free_tokens"] + stats["evictable_tokens"] == SETTINGS["max_total_tokens"]


def test_tokens_are_the_same_as_without_any_stage(engine, expected_tokens):
    prompts, params = mixed(24)
    streams = engine.submit(engine.make_requests(input_ids=prompts, sampling_params=params)[1])
    assert all(stream.done.wait(WAIT) for stream in streams), "some requests have no outcome"
    assert [stream.result()["output_ids"] for stream in streams] == expected_tokens
    assert_no_slot_lost(engine)


def test_streams_join_to_the_whole(engine):
    prompts, params = mixed(6, seed=3)
    whole = engine.generate(input_ids=prompts, sampling_params=params)
    streamed: dict[int, dict] = {}
    for result in engine.generate(input_ids=prompts, sampling_params=params, stream=True):
        before = streamed.get(result["index"], {"text": "", "output_ids": []})
        assert before.get("meta_info", {}).get("finish_reason") is None, "a chunk after the finish"
        assert result["text"].startswith(before["text"])
        streamed[result["index"]] = result
    assert [streamed[i]["text"] for i in range(6)] == [result["text"] for result in whole]
    assert [streamed[i]["output_ids"] for i in range(6)] == [result["output_ids"] for result in whole]


def logprob_call() -> dict:
    """Prompts with log-probabilities from several starts on, longer ones in chunks."""
    prompts, params = mixed(8, seed=4)
    return {
        "input_ids": prompts,
        "sampling_params": params,
        "return_logprob": [index != 3 for index in range(8)],
        "logprob_start_len": [(0, -1, len(ids) - 1, len(ids) // 2)[index % 4] for index, ids in enumerate(prompts)],
        "top_logprobs_num": [index % 3 for index in range(8)],
    }


def test_log_probabilities(engine, expected_logprobs):
    """The second time the cache knows the prompts."""
    call = logprob_call()
    for _ in range(2):
        for got, want in zip(engine.generate(**call), expected_logprobs, strict=True):
            assert got["output_ids"] == want["output_ids"]
            assert logprobs_in(got) == logprobs_in(want, nearly)
    streamed = {}
    for result in engine.generate(**call, stream=True):
        streamed[result["index"]] = result
    assert [logprobs_in(streamed[i]) for i in range(8)] == [logprobs_in(want, nearly) for want in expected_logprobs]


def logprobs_in(result: dict, number=float) -> dict:
    """What meta_info holds of them, with lists for tuples and number(x) for each log-probability x."""

    def convert(value):
        if isinstance(value, (list, tuple)):
            return [convert(item) for item in value]
        return number(value) if isinstance(value, float) else value

    return {name: convert(value) for name, value in result["meta_info"].items() if name.endswith("_logprobs")}


def nearly(value: float):
    """TP sizes add in other orders."""
    return pytest.approx(value, abs=1e-4)


def test_n_results_of_a_prompt_stand_together(engine, reference):
    params = [{"max_new_tokens": 6, "n": 3}, {"max_new_tokens": 6, "n": 2, "seed": 7}]
    prompts = [[1, 2, 3], [4, 5, 6]]
    results = engine.generate(input_ids=prompts, sampling_params=params)
    seeds = [engine.args.random_seed + index for index in range(3)] + [7, 8]
    single = [{"max_new_tokens": 6, "seed": seed} for seed in seeds]
    expected = reference.generate(input_ids=[prompts[0]] * 3 + [prompts[1]] * 2, sampling_params=single)
    assert [result["output_ids"] for result in results] == expected
    of_one_prompt = engine.generate(input_ids=prompts[0], sampling_params=params[0])
    assert [result["output_ids"] for result in of_one_prompt] == expected[:3]


def test_abort_of_a_running_request(engine):
    (stream,) = long_request(engine)
    results = stream.results()
    for _ in range(3):
        next(results)
    assert engine.abort(stream.rid)
    assert [r["meta_info"]["finish_reason"] for r in results if r["meta_info"]["finish_reason"]] == [
        {"type": "abort", "message": "aborted"}
    ]
    assert not engine.abort(stream.rid), "an ended request was found again"
    assert_no_slot_lost(engine)


def test_abort_of_a_waiting_request(engine):
    streams = long_request(engine, count=SETTINGS["max_running_requests"] * engine.args.dp_size + 2)
    last = streams[-1]
    assert engine.abort(last.rid)
    assert finish_of(last)["type"] == "abort"
    assert not last.arrivals, "a request that never ran gave tokens"
    for stream in streams[:-1]:
        assert engine.abort(stream.rid)
        assert finish_of(stream)["type"] == "abort"
    assert_no_slot_lost(engine)


def test_flush_empties_every_replica_and_is_refused_when_busy(engine):
    engine.generate(input_ids=[[5] * 50, [6] * 50], sampling_params={"max_new_tokens": 4})
    assert sum(stats["evictable_tokens"] for stats in idle_stats(engine)) > 0
    streams = long_request(engine, count=2)
    for stream in streams:
        next(stream.results())
    assert not engine.flush_cache()
    for stream in streams:
        engine.abort(stream.rid)
    assert engine.flush_cache()
    assert [stats["evictable_tokens"] for stats in idle_stats(engine)] == [0] * engine.args.dp_size


def test_every_replica_answers_a_control_message_once(engine):
    assert len(engine.stats()) == engine.args.dp_size
    assert not engine.abort("no such request")


def test_a_request_of_no_tokens(engine):
    result = engine.generate(input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 0})
    assert result["output_ids"] == []
    assert result["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_a_large_request(engine):
    plain = engine.generate(input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 4, "temperature": 0})
    image = bytes(range(256)) * 16384  # 4 MiB
    large = engine.generate(
        input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 4, "temperature": 0}, image_data=image
    )
    assert large["output_ids"] == plain["output_ids"]


def test_processes_are_what_the_operating_system_shows(engine):
    reported = [node for report in engine.processes for node in report.walk()]
    assert {node.pid for node in reported} == descendants()
    for node in reported:
        assert node.name.startswith("evo-")
        assert psutil.Process(node.pid).cmdline()[0] == node.name
    names = [node.name for node in reported]
    assert len(set(names)) == len(names)
    for report in engine.processes:
        assert psutil.Process(report.pid).ppid() == os.getpid()
        for node in report.walk():
            for child in node.children:
                assert psutil.Process(child.pid).ppid() == node.pid
    if hasattr(find_stage(engine.args.stage)[1], "process_tree"):
        predicted = process_tree(engine.args)
        assert parents(predicted.children) == parents(engine.processes)


def parents(nodes: list, parent: str = "main") -> dict[str, str]:
    """Name of each process -> name of its parent."""
    found = {node.name: parent for node in nodes}
    for node in nodes:
        found |= parents(node.children, node.name)
    return found


@pytest.mark.parametrize(("tp", "dp", "overlap"), [(1, 1, False), (2, 1, False), (1, 2, False), (2, 1, True)])
def test_clean_end(stage, tp, dp, overlap, nothing_left_behind):
    for needed, wanted in (("dp", dp > 1), ("overlap", overlap)):
        if wanted and needed not in supports(stage):
            pytest.skip(f"{stage} does not list {needed} in SUPPORTS")
    before = names_left_on_disk()
    with Engine(stage=stage, tp_size=tp, dp_size=dp, overlap=overlap, **SETTINGS) as engine:
        engine.generate(input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 4})
        assert names_left_on_disk() - before == set(), "a running engine has names on disk that a SIGKILL would leave"
        began = time.monotonic()
    assert time.monotonic() - began < 3, "the processes did not leave when asked and had to be killed"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_killed_process_is_named_and_ends_every_call(stage, overlap, nothing_left_behind):
    if overlap and "overlap" not in supports(stage):
        pytest.skip(f"{stage} does not list overlap in SUPPORTS")
    settings = SETTINGS | {"tp_size": 2, "overlap": overlap}
    with pytest.raises(EngineError) as caught, Engine(stage=stage, **settings) as engine:
        (stream,) = long_request(engine, length=1500)
        next(stream.results())
        victim = [node for report in engine.processes for node in report.walk()][-1]
        began = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        for _ in stream.results():
            pass
    assert time.monotonic() - began < 2
    assert f"{victim.name} (pid {victim.pid}) was killed by SIGKILL" in str(caught.value)
