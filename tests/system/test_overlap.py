"""The overlap loop of the peer stage: the normal loop's tokens, two traced threads, and a failure that is heard of."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec
import pytest
from safetensors.numpy import load_file, save_file

from common.models.sources import resolve_model
from common.sim.profiles import PROFILES
from evolution import Engine, EngineError
from report.trace import load, parts_of, working_turns
from tests.helpers.workloads import mixed

SETTINGS = {"stage": "peer", "model_path": "tiny", "check_divergence": 1}


def both(tp_size: int, calls: list[dict], **settings) -> tuple[list[list], list[dict]]:
    """What each loop gave for the same calls, and its figures."""
    given, stats = [], []
    for overlap in (False, True):
        with Engine(tp_size=tp_size, overlap=overlap, **settings, **SETTINGS) as engine:
            results = [result for call in calls for result in engine.generate(**call)]
            stats += engine.stats()
        given.append([(r["text"], r["output_ids"], r["meta_info"]["finish_reason"]) for r in results])
    return given, stats


@pytest.mark.parametrize("tp_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_tokens_of_the_normal_loop_under_pressure(tp_size):
    """Retraction, chunks, ends by stop ids, stop strings, end of text and length, each in the middle of a batch."""
    prompts, params = mixed(60, seed=9)
    for index, fields in enumerate(params):
        if index % 4 == 0:
            fields |= {"stop": ["e", "Q"], "temperature": 1.5, "seed": index, "max_new_tokens": 60}
        if index % 4 == 1:
            fields |= {"stop_token_ids": list(range(0, 256, 20)), "max_new_tokens": 60}
    pressure = {"max_total_tokens": 300, "max_running_requests": 8, "chunked_prefill_size": 48}
    call = {"input_ids": prompts, "sampling_params": params}
    (normal, ahead), stats = both(tp_size, [call, call], schedule_conservativeness=0.01, **pressure)
    assert ahead == normal
    assert {finish["type"] for _, _, finish in normal} == {"stop", "length"}
    assert {str, int} <= {type(finish.get("matched")) for _, _, finish in normal}, "stop strings and stop ids"
    assert all(s["retractions"] > 0 for s in stats), "the pool never ran dry: nothing was tested"
    assert all(s["free_tokens"] + s["evictable_tokens"] == 300 for s in stats)


def test_a_request_is_computed_one_step_too_far():
    """As in 0.4.0, by its length too; a request of one token and one of none among them."""
    calls = [
        {"input_ids": [[1, 2, 3]], "sampling_params": {"max_new_tokens": n, "ignore_eos": True}} for n in (0, 1, 9)
    ]
    (normal, ahead), stats = both(1, calls)
    assert ahead == normal
    assert [s["turns"] for s in stats] == [11, 13]


def test_with_gloo_collectives_in_the_forward_thread():
    """Two gloo groups in a process, each used by one thread."""
    prompts, params = mixed(6, seed=1)
    (normal, ahead), _ = both(2, [{"input_ids": prompts, "sampling_params": params}], collectives="gloo")
    assert ahead == normal


def test_abort_while_in_flight():
    """Aborts land between the launch of a step and its result; what the others get is not touched."""
    params = {"max_new_tokens": 200, "temperature": 1.0, "ignore_eos": True}
    prompts = [[index] * 5 for index in range(6)]
    with Engine(tp_size=2, overlap=True, **SETTINGS) as engine:
        whole = [result["output_ids"] for result in engine.generate(input_ids=prompts, sampling_params=params)]
        streams = engine.submit(engine.make_requests(None, params, prompts, stream=True)[1])
        for stream in streams:
            next(stream.results())
        assert all(engine.abort(stream.rid) for stream in streams[::2])
        results = [stream.result() for stream in streams]
        (stats,) = engine.stats()
    for index, result in enumerate(results):
        ids, finish = result["output_ids"], result["meta_info"]["finish_reason"]["type"]
        assert ids == whole[index][: len(ids)]
        assert finish == ("length" if index % 2 else "abort")
        assert (len(ids) == 200) == bool(index % 2)
    assert stats["free_tokens"] + stats["evictable_tokens"] == stats["total_tokens"]


def test_abort_of_a_prompt_between_two_chunks(tmp_path: Path):
    """A forward of 30 ms, so that the prompt's 50 chunks are still under way when it is aborted."""
    slow = msgspec.structs.replace(PROFILES["h100-qwen3-0.6b"], fixed_seconds=0.03)
    profile = tmp_path / "slow.json"
    profile.write_bytes(msgspec.json.encode(slow))
    settings = {"device": "sim", "sim_profile": str(profile), "stage": "peer", "chunked_prefill_size": 4}
    with Engine(tp_size=2, overlap=True, check_divergence=1, **settings) as engine:
        params = {"max_new_tokens": 3, "ignore_eos": True, "seed": 5}
        prompts = [list(range(200)), [7, 8, 9]]
        long, short = engine.submit(engine.make_requests(None, params, prompts, stream=True)[1])
        while not engine.stats()[0]["running"]:
            pass
        assert engine.abort(long.rid)
        assert long.result()["output_ids"] == []
        assert long.result()["meta_info"]["finish_reason"]["type"] == "abort"
        alone = engine.generate(input_ids=prompts[1], sampling_params=params)["output_ids"]
        assert short.result()["output_ids"] == alone and len(alone) == 3
        (stats,) = engine.stats()
        assert stats["turns"] < 40, "the prompt was computed to its end"
        assert stats["free_tokens"] + stats["evictable_tokens"] == stats["total_tokens"]
        assert engine.flush_cache()


def test_an_exception_in_the_forward_thread_ends_the_engine(tmp_path: Path, nothing_left_behind):
    folder = shutil.copytree(resolve_model("tiny"), tmp_path / "broken")
    (file,) = folder.glob("*.safetensors")
    weights = {name: array.copy() for name, array in load_file(file).items()}
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    settings = SETTINGS | {"model_path": str(folder)}
    with pytest.raises(EngineError) as caught, Engine(tp_size=2, overlap=True, **settings) as engine:
        (stream,) = engine.submit(engine.make_requests(input_ids=[[1, 2, 3]])[1])
        began = time.monotonic()
        stream.result()
    assert time.monotonic() - began < 20, "heard of, and not waited for until some timeout"
    assert "evo-peer TP" in str(caught.value)
    assert "raised FloatingPointError: the model's logits are not finite" in str(caught.value)
    assert "in _run" in str(caught.value), "the forward thread's traceback"


def test_both_threads_are_traced(tmp_path: Path):
    with Engine(overlap=True, trace_dir=str(tmp_path), device="sim", stage="peer", tp_size=2) as engine:
        for n in (2, 20):
            time.sleep(0.3)
            engine.generate("Hello", {"max_new_tokens": n, "ignore_eos": True})
    threads = {(thread.process, thread.thread): thread for thread in load(tmp_path)}
    for rank in ("evo-peer TP0", "evo-peer TP1"):
        loop, forward = threads[rank, "loop"], threads[rank, "forward"]
        assert len(working_turns(forward)) == 3 + 21, "each time a prefill, 1 or 19 steps, and one too far"
        planned, executed = parts_of(loop, working_turns(loop)), parts_of(forward, working_turns(forward))
        assert {"get_next_batch_to_run", "wait_for_forward", "process_batch_result"} <= planned.keys()
        assert "forward" in executed and "forward" not in planned
        assert "wait_for_plan" in executed
        everything = parts_of(forward, list(range(1, len(forward.turns))))
        assert everything["idle"][0] > 0.2e9, "nothing ran before the second call"
        assert everything["wait_for_plan"][0] < everything["forward"][0]
