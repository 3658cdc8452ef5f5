from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from common import memory
from common.memory import available_bytes, check_memory, default_max_total_tokens, kv_bytes_per_token, weight_bytes
from common.models.config import ModelConfig, plan_heads

GIB = 1 << 30

SMOLLM2 = ModelConfig(
    path=Path("smollm2"),
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    def set_free(gib: float) -> None:
        monkeypatch.setattr(memory, "available_bytes", lambda: int(gib * GIB))

    return set_free


def test_bytes_of_smollm2() -> None:
    layout = plan_heads(SMOLLM2, 1)
    assert kv_bytes_per_token(SMOLLM2, layout, "float32") == 30 * 2 * 3 * 64 * 4
    # 134.5 million parameters, and the tied embedding a second time, as lm_head
    assert weight_bytes(SMOLLM2, layout, "bfloat16") == pytest.approx(2 * (134.5e6 + 49152 * 576), rel=0.01)
    assert kv_bytes_per_token(SMOLLM2, plan_heads(SMOLLM2, 2), "float32") == 30 * 2 * 2 * 64 * 4  # a padded KV head


def test_default_pool_on_a_cpu(free) -> None:
    free(20)
    assert default_max_total_tokens(SMOLLM2, 1, 1, "float32", "cpu", 8192) == 16384
    assert default_max_total_tokens(SMOLLM2, 1, 1, "float32", "cpu", 40000) == 40000
    free(1.5)
    assert 1 < default_max_total_tokens(SMOLLM2, 1, 1, "float32", "cpu", 8192) < 8192
    free(0.1)
    assert default_max_total_tokens(SMOLLM2, 1, 1, "float32", "cpu", 8192) == 1


@pytest.mark.parametrize(("tp", "dp"), [(1, 1), (2, 1), (1, 4), (2, 2)])
def test_what_the_refusal_says_would_fit_does_fit(free, tp: int, dp: int) -> None:
    free(12)
    with pytest.raises(ValueError, match="would fit") as refusal:
        check_memory(SMOLLM2, tp, dp, "float32", "cpu", 10_000_000)
    assert "\n" not in str(refusal.value)
    tokens = int(str(refusal.value).split("--max-total-tokens ")[1].split()[0])
    check_memory(SMOLLM2, tp, dp, "float32", "cpu", tokens)
    with pytest.raises(ValueError):
        check_memory(SMOLLM2, tp, dp, "float32", "cpu", tokens + 1)


def test_too_many_replicas(free) -> None:
    free(4)
    with pytest.raises(ValueError, match="--dp-size 3 would fit, with up to") as refusal:
        check_memory(SMOLLM2, 1, 8, "float32", "cpu", 100)
    check_memory(SMOLLM2, 1, 3, "float32", "cpu", int(str(refusal.value).split("up to ")[1].split()[0]))
    with pytest.raises(ValueError, match="only a smaller model would fit"):
        check_memory(dataclasses.replace(SMOLLM2, num_layers=400), 1, 1, "float32", "cpu", 100)


def fake_proc(tmp_path: Path, cgroup: str) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    8000 kB\n")
    (proc / "self/cgroup").write_text(cgroup)
    return proc


def fake_group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_available_without_a_limit(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, "0::/a/b\n")
    fake_group(tmp_path / "cg/a/b", {"memory.max": "max\n"})
    assert available_bytes(proc, tmp_path / "cg") == 8000 * 1024


def test_available_in_a_version_2_cgroup_is_the_least_of_its_ancestors(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, "0::/a/b\n")
    fake_group(tmp_path / "cg/a/b", {"memory.max": "max\n"})
    stat = "anon 5\ninactive_file 1000\n"
    fake_group(tmp_path / "cg/a", {"memory.max": "500000\n", "memory.current": "101000\n", "memory.stat": stat})
    assert available_bytes(proc, tmp_path / "cg") == 400000


def test_available_in_a_version_1_cgroup_seen_from_a_container(tmp_path: Path) -> None:
    """/proc names a path of the host; only the container's own group is mounted, as the root."""
    proc = fake_proc(tmp_path, "4:memory:/host/xyz\n0::/\n")
    fake_group(
        tmp_path / "cg/memory",
        {
            "memory.limit_in_bytes": "600000\n",
            "memory.usage_in_bytes": "110000\n",
            "memory.stat": "cache 7\ntotal_inactive_file 10000\n",
        },
    )
    assert available_bytes(proc, tmp_path / "cg") == 500000
