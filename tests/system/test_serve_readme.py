"""The curl examples of the README, exactly as they stand there, but for the port."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.serving import serving

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"<!-- tests/system/test_serve_readme.py runs these -->\n```\n(.*?)```\n<!-- end -->", re.DOTALL)
# What each must answer with, in their order.
ANSWERS = [
    "",
    '"max_model_len"',
    '"meta_info"',
    "data: [DONE]",
    '"top_logprobs"',
    "data: [DONE]",
    '"success":true',
    "sglang:",
]


def examples() -> list[str]:
    (block,) = BLOCK.findall(README.read_text())
    return [command for command in re.split(r"\n(?=curl )", block.rstrip()) if command]


@pytest.fixture(scope="module")
def server():
    with serving("--tp-size", "2") as server:
        yield server


def test_there_is_an_answer_known_for_each() -> None:
    assert len(examples()) == len(ANSWERS)


@pytest.mark.parametrize("index", range(len(ANSWERS)))
def test_an_example(server, tmp_path: Path, index: int) -> None:
    command = examples()[index].replace(":30000", f":{server.port}")
    (tmp_path / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")
    env = {**os.environ, "CURL_HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert ANSWERS[index] in done.stdout
