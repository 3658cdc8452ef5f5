"""Profiles: the built-in ones, files, and what is refused in one line."""

from __future__ import annotations

import json

import msgspec
import pytest

from common.models.config import plan_heads
from common.sim.profiles import DEFAULT_PROFILE, PROFILES, kv_tokens, load_profile

WHOLE = msgspec.to_builtins(PROFILES[DEFAULT_PROFILE])

LAST = ("fixed_seconds", "token_seconds", "key_seconds")


def written(tmp_path, values) -> str:
    path = tmp_path / "mine.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


@pytest.mark.parametrize("name", PROFILES)
def test_built_in_profiles_work_at_the_usual_tp_sizes(name):
    profile = load_profile(name)
    pools = [kv_tokens(profile, tp_size) for tp_size in (1, 2, 4, 8)]
    assert pools[0] > 100_000
    assert pools == sorted(pools)


def test_a_file_holds_the_same_profile(tmp_path):
    assert load_profile(written(tmp_path, WHOLE)) == PROFILES[DEFAULT_PROFILE]


def test_the_last_three_fields_may_be_left_out(tmp_path):
    given = {name: value for name, value in WHOLE.items() if name not in LAST}
    profile = load_profile(written(tmp_path, given))
    assert [getattr(profile, name) for name in LAST] == [0, 0, 0]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("{", "truncated"),
        ("[1]", "Expected `object`"),
        ({**WHOLE, "flops": -1}, "$.flops"),
        ({**WHOLE, "flops": "fast"}, "$.flops"),
        ({**WHOLE, "memory_bandwidth": 0}, "$.memory_bandwidth"),
        ({**WHOLE, "dtype": "float8"}, "$.dtype"),
        ({**WHOLE, "colour": "green"}, "unknown field `colour`"),
        ({name: value for name, value in WHOLE.items() if name != "flops"}, "missing required field `flops`"),
        ({**WHOLE, "model": {**WHOLE["model"], "num_layers": 1.5}}, "$.model.num_layers"),
        ({**WHOLE, "model": {**WHOLE["model"], "num_kv_heads": 3}}, "16 query heads cannot be shared out over 3"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, values, reason):
    path = written(tmp_path, values)
    with pytest.raises(ValueError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert path in message
    assert reason in message
    assert "\n" not in message


def test_names_that_are_no_profile():
    with pytest.raises(ValueError, match="there is no profile 'h200': choose h100-llama3-8b, "):
        load_profile("h200")
    with pytest.raises(ValueError, match=r"/no/such.json: No such file"):
        load_profile("/no/such.json")


def test_the_kv_pool_is_what_the_weights_leave():
    # Llama-3-8B in bfloat16 is 8.03e9 weights (its norms are not counted); a token's KV is 32 * 2 * 8 * 128 of them.
    assert kv_tokens(PROFILES["h100-llama3-8b"], 1) == pytest.approx((0.9 * 80e9 - 2 * 8.03e9) / 131072, rel=1e-3)
    small = msgspec.structs.replace(PROFILES["h100-llama3-8b"], memory_bytes=16e9)
    assert kv_tokens(small, 1) == 0
    assert kv_tokens(small, 2) > 0


def test_tp_sizes_are_those_of_the_profiles_model():
    with pytest.raises(ValueError, match="Llama-3-8B cannot run at TP 3: its MLP width 14336"):
        plan_heads(PROFILES["h100-llama3-8b"].model.config, 3)
