"""Hosts on which an engine must work all the same: no name of one's own, no room in /dev/shm, others that start too."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

STAGES = ["peer", *[pytest.param(stage, marks=pytest.mark.slow) for stage in ("rpyc", "broadcast")]]
RUN = [sys.executable, "-m", "evolution", "run", "--model-path", "tiny", "--tp-size", "2", "--prompt", "a"]


def in_a_host_of_its_own(*setup: str) -> list[str]:
    """A command in namespaces of its own, after `setup`; the test is skipped where there can be none."""
    command = ["unshare", "--net", "--uts", "--mount", "sh", "-ec", "; ".join([*setup, 'exec "$@"']), "sh"]
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("there is no unshare or no ip")
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode:
        pytest.skip(f"no namespaces can be made here: {tried.stderr.strip()}")
    return command


@pytest.mark.parametrize("placed", STAGES)
def test_a_host_whose_name_leads_nowhere_and_whose_shared_memory_is_full(placed, nothing_left_behind):
    """Only the loopback is up, the host's name has no address, and /dev/shm has 64 KiB."""
    shm = "mount -t tmpfs -o size=64k none /dev/shm"
    host = in_a_host_of_its_own("ip link set lo up", "echo nowhere.invalid > /proc/sys/kernel/hostname", shm)
    done = subprocess.run(
        [*host, *RUN, "--stage", placed, "--dp-size", "2"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("constants", ["level", "era"])
def test_four_that_start_in_the_same_second(stage, constants, nothing_left_behind):
    """Nobody takes the port, socket or file of another. With era constants there are ports."""
    command = [*RUN, "--stage", stage, "--dp-size", "2", "--constants", constants]
    for _ in range(5):
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        for run in runs:
            _, error = run.communicate(timeout=100)
            assert run.returncode == 0, error
