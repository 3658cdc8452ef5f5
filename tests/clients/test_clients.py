"""Real clients, unmodified, each in a virtual environment of its own, against every stage.

`make clients` makes the environments and runs this; where one is missing its tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.helpers.serving import CHAT_TEMPLATE, serving

HERE = Path(__file__).parent
VENVS = Path(os.environ.get("EVOLUTION_CLIENTS", HERE.parents[1] / ".clients"))
BENCH = [
    ["--backend", "sglang", "--dataset-name", "random-ids"],
    ["--backend", "sglang", "--dataset-name", "generated-shared-prefix", "--flush-cache", "--output-details"],
    ["--backend", "sglang-oai", "--dataset-name", "random-ids"],
    ["--backend", "vllm", "--dataset-name", "random-ids"],
]
SIZES = {
    "random-ids": [
        "--num-prompts",
        "8",
        "--random-input",
        "32",
        "--random-output",
        "16",
        "--random-range-ratio",
        "0.5",
    ],
    "generated-shared-prefix": [
        *("--gsp-num-groups", "2", "--gsp-prompts-per-group", "3", "--gsp-system-prompt-len", "64"),
        *("--gsp-question-len", "16", "--gsp-output-len", "8"),
    ],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(stage):
    options = ["--stage", stage, "--tp-size", "2", "--max-total-tokens", "8192"]
    with serving(*options, "--chat-template", str(CHAT_TEMPLATE)) as server:
        yield server


def run(venv: str, *command: str, cwd: Path, **more_env: str) -> str:
    python = VENVS / venv / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python}: `make clients` makes it")
    # Nothing is fetched, and nothing of this project is on their path.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(cwd), **more_env}
    done = subprocess.run(
        [python, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.mark.parametrize("version", ["0.4.6", "0.3.4"])
def test_sglang_frontend(server, version, tmp_path):
    run(f"sglang-{version}", str(HERE / "scripts" / "sglang_frontend.py"), server.url, cwd=tmp_path)


@pytest.mark.parametrize("arguments", BENCH, ids=[f"{bench[1]}-{bench[3]}" for bench in BENCH])
def test_sglang_bench_serving(server, arguments, tmp_path):
    sizes = SIZES[arguments[3]]
    where = ["--host", "127.0.0.1", "--port", str(server.port), "--output-file", "out.jsonl", "--disable-tqdm"]
    run("sglang-0.4.6", "-m", "sglang.bench_serving", *arguments, *sizes, *where, cwd=tmp_path)
    result = json.loads((tmp_path / "out.jsonl").read_text())
    assert result["completed"] == (6 if "generated-shared-prefix" in arguments else 8)
    assert result["total_output_tokens"] > 0 and result["mean_ttft_ms"] > 0


@pytest.mark.parametrize("client", ["openai", "litellm"])
def test_clients_of_openai(server, client, tmp_path):
    run(client, str(HERE / "scripts" / f"{client}_client.py"), server.url, cwd=tmp_path)


def test_locust(server, tmp_path):
    file = str(HERE / "scripts" / "locust_users.py")
    load = ["--headless", "--users", "4", "--spawn-rate", "4", "--run-time", "5s", "--csv", "out"]
    run("locust", "-m", "locust", "-f", file, "--host", server.url, *load, cwd=tmp_path)
    rows = (tmp_path / "out_stats.csv").read_text().splitlines()
    _, _, requests, failures = rows[-1].split(",")[:4]
    assert rows[-1].startswith(",Aggregated") and int(requests) > 0 and int(failures) == 0


def test_aiperf(server, tmp_path):
    """Streamed chats, with what it counts of the tokens and of the times beside the server's usage."""
    folder = server.client.get("/v1/models").json()["data"][0]["id"]
    sizes = ["--concurrency", "4", "--request-count", "16", "--synthetic-input-tokens-mean", "32"]
    sizes += ["--output-tokens-mean", "16", "--extra-inputs", "ignore_eos:true", "--random-seed", "1"]
    quiet = ["--ui", "none", "--no-gpu-telemetry", "--artifact-dir", str(tmp_path / "out")]
    how = ["--endpoint-type", "chat", "--streaming", "--use-server-token-count"]
    where = ["--model", folder, "--tokenizer", folder, "--url", server.url]
    aiperf = str(VENVS / "aiperf" / "bin" / "aiperf")
    # When told to be offline it takes no tokenizer from a folder, only from a cache of the hub.
    run("aiperf", aiperf, "profile", *where, *how, *sizes, *quiet, cwd=tmp_path, HF_HUB_OFFLINE="")
    result = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert result["request_count"]["avg"] == 16
