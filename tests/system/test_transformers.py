"""Greedy tokens equal those of transformers, through every stage. `make test` runs a diagonal, `make nightly` all."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from common.models.sources import resolve_model
from common.tokenizer import Tokenizer
from evolution import Engine
from experiments import transformers_reference as hf

NEW_TOKENS = 16
STAGES = ("rpyc", "broadcast", "peer")
ALL = list(itertools.product(STAGES, (1, 2, 4), (True, False), (-1, 8)))
DIAGONAL = [("rpyc", 2, True, 8), ("broadcast", 4, False, -1), ("peer", 1, True, -1)]
SHAPES = [
    pytest.param(
        *shape,
        "level",
        marks=[] if shape in DIAGONAL else pytest.mark.slow,
        id="{}-tp{}-radix{:d}-chunk{}".format(*shape),
    )
    for shape in ALL
] + [
    pytest.param(*shape, "era", marks=pytest.mark.slow, id="{}-tp{}-radix{:d}-chunk{}-era".format(*shape))
    for shape in itertools.product(STAGES, (1, 2), (True,), (8,))
]


@pytest.fixture(scope="module")
def smollm2():
    """Prompts and the tokens that transformers gives for them."""
    folder = resolve_model("smollm2")
    tokenizer = Tokenizer(folder)
    model = hf.load(folder)
    prompts = [tokenizer.encode(text) for text in hf.PROMPTS]
    return prompts, [hf.greedy(model, ids, NEW_TOKENS) for ids in prompts]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("stage_name", "tp", "radix", "chunk", "constants"), SHAPES)
def test_smollm2_greedy_tokens_equal_transformers(smollm2, stage_name, tp, radix, chunk, constants):
    prompts, expected = smollm2
    settings = {"disable_radix_cache": not radix, "chunked_prefill_size": chunk, "max_total_tokens": 4096}
    settings["constants"] = constants
    with Engine(model_path="smollm2", stage=stage_name, tp_size=tp, **settings) as engine:
        sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        first = engine.generate(input_ids=prompts, sampling_params=sampling)
        again = engine.generate(input_ids=prompts, sampling_params=sampling)
    assert [result["output_ids"] for result in first] == expected
    assert [result["output_ids"] for result in again] == expected
    if radix:
        assert all(r["meta_info"]["cached_tokens"] == r["meta_info"]["prompt_tokens"] - 1 for r in again)


FOLDERS = list(itertools.product((1, 2, 3, 5), (True, False)))
FOLDER_SHAPES = [
    pytest.param(
        kv,
        tied,
        tp,
        STAGES[index % 3],
        marks=[] if (kv, tied, tp) in [(3, True, 2), (5, False, 2), (1, True, 2)] else pytest.mark.slow,
        id=f"kv{kv}-{'tied' if tied else 'untied'}-tp{tp}",
    )
    for index, ((kv, tied), tp) in enumerate(itertools.product(FOLDERS, (1, 2, 4)))
    if not (kv == 1 and tp == 4)
]


@pytest.mark.parametrize(("kv", "tied", "tp", "stage_name"), FOLDER_SHAPES)
def test_random_llama_greedy_tokens_equal_transformers(tmp_path, kv, tied, tp, stage_name):
    folder = hf.write_random_llama(tmp_path / "model", kv, tied)
    shutil.copy(Path(resolve_model("tiny")) / "tokenizer.json", folder)
    model = hf.load(folder)
    prompts = [list(range(start, start + 5 + start)) for start in range(0, 40, 4)]
    expected = [hf.greedy(model, ids, 24) for ids in prompts]
    with Engine(model_path=str(folder), stage=stage_name, tp_size=tp, max_total_tokens=2048) as engine:
        sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
        results = engine.generate(input_ids=prompts, sampling_params=sampling)
    assert [result["output_ids"] for result in results] == expected
    assert len({token for ids in expected for token in ids}) > 20, "the output does not vary: nothing was tested"
