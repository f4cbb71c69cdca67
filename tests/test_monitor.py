"""What a run uses of its nodes is looked at while it trains, and summed up: CPUs for real, GPUs by a stand-in of NVML.

GPUs' figures come from `fake_nvml`, which is no driver: what real GPUs answer was never seen (docs/untested.md).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chain_runs import Bench
from fake_nvml import FakeNvml
from relay.process.gpus import VISIBLE, Gpus, visible
from relay.process.usage import Usage
from relay.run_folder import samples
from relay.run_folder.attempts import Records, line_of
from relay.run_folder.samples import READINGS
from relay.training.utilisation import used

pytest_plugins = ["chain_runs"]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    fake = FakeNvml(("GPU-a", "GPU-b", "MIG-c"))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    yield fake
    assert fake.opened == 0, "NVML was not let go"
    assert fake.samples == 0, "samples of NVML were not freed"


def seen(*uuids: str) -> list[dict[str, float | None]]:
    gpus = Gpus(uuids)
    found = [dict(zip(READINGS, reading, strict=True)) for _ in range(2) for reading in gpus.look()]
    gpus.close()
    return found[len(found) // 2 :]


def test_a_gpus_readings_are_told_in_their_units(nvml: FakeNvml) -> None:
    (found,) = seen("a")
    assert found == {
        "utilisation": 0.75, "memory_bytes": 3 * 2**30, "power_watts": 250.5, "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1593, "energy_joules": 9000.5, "sm_activity": 0.6, "tensor_activity": 0.125,
    }  # fmt: skip


def test_a_script_has_the_gpus_that_cuda_shows(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    assert visible() == dict.fromkeys(("GPU-a", "GPU-b", "MIG-c"), "NVIDIA Fake")
    for shown, found in {"1,0": "ba", "GPU-b": "b", "7": "", "": "", "MIG-c, 0": "ac"}.items():
        monkeypatch.setenv(VISIBLE, shown)
        assert "".join(uuid[-1] for uuid in visible()) == found, shown


BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint(flush=True); input()"
PARENT = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {BUSY!r}]); child.wait()"


def test_the_cpu_time_and_memory_of_workers_count_and_stay_counted_when_they_end() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        parent.stdout.readline()  # the child has spent its time
        with_workers, alone = Usage([parent.pid], 1), Usage([parent.pid])
        (spent, resident), (own, its) = with_workers.look(), alone.look()
        assert spent >= own + 0.28
        assert resident > its > 0
        parent.communicate(b"\n")
        assert with_workers.look() == (pytest.approx(spent, abs=0.2), 0)
    finally:
        parent.kill()
        parent.wait()


def looks(work: Path, attempt: int, rank: int, rows: list[list[Any]]) -> None:
    path = samples.samples_path(work, attempt, rank)
    path.parent.mkdir(exist_ok=True)
    first = {"run": work.name, "host": f"node{rank}", "cpus": 2, "seconds": 1.0, "gpus": []}
    path.write_text(line_of(first) + line_of({"looks": rows}))


def gpu(busy: float | None, watts: float | None, joules: float | None) -> list[float | None]:
    return [busy, 10.0, watts, 1000.0, None, joules, None, None]


def attempt(began: float, ended: float, steps: int) -> Records:
    return Records([{"time": began, "start": 0}, {"time": ended, "losses": [1.0] * steps}])


def test_figures_are_of_the_time_in_which_the_run_trained(tmp_path: Path) -> None:
    """Two CPUs: idle while it loaded, from 0 to 10; one of them busy from 10 to 20; another one's looks beside it."""
    rows = [[0.0, 0.0, 50, [gpu(0, 100, 0)]], [10.0, 0.0, 60, [gpu(0, 100, 1000)]]]
    rows += [[15.0, 5.0, 900, [gpu(0.5, 300, 2500)]], [20.0, 10.0, 70, [gpu(1.0, 300, 4000)]]]
    looks(tmp_path, 1, 0, rows)
    found = used(tmp_path, [(1, attempt(10, 20, 40)), (2, Records())], steps_per_epoch=20)
    wanted = {"cpu_utilisation": 0.5, "gpu_utilisation": 0.75, "gpu_power_watts": 300, "gpu_energy_joules": 3000}
    wanted |= {"gpu_energy_joules_per_epoch": 1500, "peak_node_memory_bytes": 900, "peak_gpu_memory_bytes": 10}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert "gpu_sm_activity" not in found


def test_nodes_and_attempts_are_put_together(tmp_path: Path) -> None:
    for number, rank in ((1, 0), (1, 4), (2, 0), (2, 4)):
        looks(tmp_path, number, rank, [[10.0 * number, 0.0, 5, [gpu(0.5, 100, None)] * 2],
                                       [10.0 * number + 5, 10.0, 5, [gpu(0.5, 100, None)] * 2]])  # fmt: skip
    found = used(tmp_path, [(n, attempt(10.0 * n, 10.0 * n + 5, 10)) for n in (1, 2)], steps_per_epoch=10)
    assert found["cpu_utilisation"] == pytest.approx(1.0)
    assert found["gpu_power_watts"] == pytest.approx(400), "two nodes with two GPUs each"
    assert found["gpu_energy_joules"] == pytest.approx(4000), "from the power, without a counter of energy"


@pytest.mark.slow
def test_a_run_is_looked_at_on_all_its_ranks(bench: Bench) -> None:
    shape = {"strategy": "ddp", "devices_per_node": 2, "launcher": "torchrun", "total_steps": 12}
    chain = bench.chain("results", **shape, monitor_seconds=0.05).train(forked=True)
    (node,) = samples.read(chain.work, 1)
    assert (node.cpus, node.host) == (2, os.uname().nodename)
    assert len(node.looks) >= 2
    spent = node.looks[-1].cpu_seconds - node.looks[0].cpu_seconds
    assert spent > 0.05, "two processes that train"
    everything = [look.node_cpu_seconds or 0.0 for look in node.looks]
    assert everything[-1] - everything[0] > 0.5 * spent, "what they spend is part of what the node does"
    assert node.looks[-1].resident_bytes > 1.5 * psutil.Process().memory_info().rss / 4
