"""What a run uses of its nodes is looked at while it trains, and summed up: CPUs for real, GPUs by a stand-in of NVML.

GPUs' figures come from `fake_nvml`, which is no driver: what real GPUs answer was never seen (docs/untested.md).
"""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from chain_runs import Bench
from fake_cuda import driver_of_gpus
from fake_nvml import FakeNvml
from relay.process import usage
from relay.process.gpus import Gpus, uuids, visible
from relay.process.usage import Usage
from relay.run_folder import samples
from relay.run_folder.attempts import Records, line_of, lines_of
from relay.run_folder.samples import READINGS
from relay.training.utilisation import used


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    fake = FakeNvml(("GPU-a", "GPU-b", "MIG-c", "GPU-divided"))
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


def test_a_metric_that_a_gpu_has_not_is_not_known(nvml: FakeNvml) -> None:
    nvml.unsupported_metric = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    (found,) = seen("a")
    assert (found["sm_activity"], found["tensor_activity"]) == (0.6, None)


@pytest.mark.parametrize("unknown", ["divided", "", "0"])
def test_where_one_gpu_is_not_known_alone_none_is_looked_at(nvml: FakeNvml, unknown: str) -> None:
    """Of a GPU that is divided (MIG), the whole one's figures are also other users'. A sum without it is too small."""
    gpus = Gpus(["a", unknown])
    assert (gpus.look(), "alone" in gpus.unknown) == ([], True)
    gpus.close()


def test_a_gpu_of_which_torch_tells_no_uuid_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {0: SimpleNamespace(uuid="a")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known[device.index])
    assert uuids([torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)]) == ["a", ""]


def test_a_script_has_the_gpus_that_cuda_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked, as it alone knows what numbers, UUIDs and parts of GPUs stand for."""
    driver_of_gpus(tmp_path, monkeypatch, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    shown = visible()
    assert (shown.kinds, [uuid[-3:] for uuid in shown.uuids]) == (["Fake", "Fake"], ["000", "001"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    why = "NVIDIA's driver says: no CUDA-capable device is detected (CUDA_VISIBLE_DEVICES is '')"
    assert visible() == ([], [], why)


BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint(flush=True)"
# The first process ends between two looks. Others begin later, one of them by a shell, and stay.
PARENT = f"""
import subprocess, sys
busy, stays = {BUSY!r}, {BUSY!r} + ";import sys; sys.stdin.read()"
input()
subprocess.run([sys.executable, "-c", busy])
input()
child = subprocess.Popen(["sh", "-c", '"$0" -c "$1"; :', sys.executable, stays])
child.wait()
"""


def test_the_cpu_time_and_memory_of_workers_count_and_stay_counted_when_they_end() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin
        assert parent.stdout
        own, below = Usage([parent.pid]), Usage([parent.pid], themselves=False)
        spent, alone = own.look()
        for _ in range(2):
            parent.stdin.write(b"\n")
            parent.stdin.flush()
            parent.stdout.readline()
            before, (spent, resident) = spent, own.look()
            assert spent >= before + 0.28
        assert resident > alone > 0
        assert below.look()[0] >= 0.28
        parent.stdin.close()
        parent.wait()
        assert own.look() == (pytest.approx(spent, abs=0.2), 0)


def test_a_line_that_a_full_disk_has_cut_off_takes_none_with_it(tmp_path: Path) -> None:
    path, lines = tmp_path / "looks", [{"run": "r"}, {"looks": []}]
    kept = [*lines]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        assert isinstance(usage._write(path, kept), OSError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert usage._write(path, kept) is None
    assert (kept, lines_of(path)) == ([], lines)


def test_a_process_with_the_number_of_one_that_has_ended_is_a_new_one() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        below = Usage([os.getpid()], themselves=False)
        below.look()
        below._running[child.pid] = below._running[child.pid]._replace(began="0")
        below.look()
        below.look()
        assert child.pid in below._running
        child.kill()


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


@pytest.mark.parametrize("after", [gpu(0.5, None, None), gpu(0.5, 100, None)], ids=["of both", "of its energy"])
def test_the_energy_of_all_gpus_is_not_known_where_one_stops_to_tell_its_own(
    tmp_path: Path, after: list[float | None]
) -> None:
    looks(tmp_path, 1, 0, [[10.0, 0.0, 5, [gpu(0.5, 100, 0)] * 2], [12.0, 0.0, 5, [gpu(0.5, 100, 200)] * 2],
                           [15.0, 0.0, 5, [gpu(0.5, 100, 500), after]]])  # fmt: skip
    assert not [name for name in used(tmp_path, [(1, attempt(10, 15, 9))], 10) if "energy" in name or "power" in name]


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
