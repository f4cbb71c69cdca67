"""What `zero3_offload_nvme` refuses: no libaio, no room, a disk that fills up."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import debian_packages
from plans import planned
from preloaded import spawned
from relay.base.errors import UserError
from relay.planning import skips
from relay.process.ranks import Ranks
from sharded import batch, built, of_task, prepared
from small_disks import fill, mounts, small
from stacks import provide

NVME = "zero3_offload_nvme"
ROOMY_KB, NARROW_KB = 40_000, 400


# On this machine


def test_without_libaio_it_is_skipped_with_the_package_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skips, "has_header", lambda name: name != "libaio.h")
    (skipped,) = planned({"strategy": NVME, "devices_per_node": 2}).skipped
    assert skipped.reasons == (f"{NVME} needs libaio, and this machine has no libaio.h (Debian: libaio-dev)",)


# In a job


def _found(ranks: Ranks, disks: dict[str, str], output: Path) -> None:
    """All that a process finds, on one disk after another."""
    from relay.strategies import zero3_offload_nvme as disk

    task = of_task("gpt-tiny", output.parent / "text")

    def train(place: str) -> Any:
        os.environ[disk.NODE_DISK] = disks[place]
        strategy = built(NVME, ranks, task)
        strategy.train_step(batch(task, strategy))
        return strategy

    with pytest.raises(UserError) as narrow:
        train("narrow")
    known = disk.check_room

    def check_then_fill(folder: Path, *given: Any) -> None:
        known(folder, *given)
        fill(folder)

    with mock.patch.object(disk, "check_room", check_then_fill), pytest.raises(UserError) as filled:
        train("roomy")

    before = written()
    strategy = train("real")
    found: dict[str, Any] = {"narrow": str(narrow.value), "filled": str(filled.value)}
    found |= {"counted": strategy.counted(), "written": written() - before}
    found["in_files"] = sum(path.stat().st_size for path in strategy.folder.rglob("*") if path.is_file())
    output.write_text(json.dumps(found))


def written() -> int:
    """Bytes that this process has caused to be written to disks, as the kernel counts them."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


@pytest.mark.slow
def test_in_a_job_it_ends_with_what_is_missing_and_counts_what_it_writes(tmp_path: Path) -> None:
    """One process finds all of it: importing DeepSpeed takes longer than training."""
    debian_packages.require()
    provide("deepspeed")
    with mounts() as mount:
        small(tmp_path / "narrow", mount, NARROW_KB)
        small(tmp_path / "roomy", mount, ROOMY_KB)
        (tmp_path / "real").mkdir()
        disks = {name: str(tmp_path / name) for name in ("narrow", "roomy", "real")}
        (tmp_path / "text").mkdir()
        prepared("gpt-tiny", tmp_path / "text")
        spawned(_found, 1, disks, tmp_path / "found.json")
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())

    # Too little room is told before anything is written. gpt-tiny has 237 thousand parameters, four numbers for each.
    free = f"{NARROW_KB * 1024 / 1e9:.3g} GB free, 0.00379 GB are needed"
    assert found["narrow"] == (
        f"{NVME}: {tmp_path}/narrow on node {os.uname().nodename} has {free}; name a larger disk as `node_disk` in the "
        "site's file"
    )

    # A disk that fills up ends the training. DeepSpeed itself would go on, and read what was never written.
    assert found["filled"].startswith(f"{NVME}: {tmp_path}/roomy/")
    assert "has no room for" in found["filled"]
    assert "No space left on device" in found["filled"]

    # The kernel counts a little of the file system's own besides, 0.8 to 2.1 %.
    written = found["counted"]["disk_bytes_written"]
    assert written <= found["written"] <= 1.05 * written
    # The first values, those after the step, and the state of AdamW.
    assert written >= found["in_files"] >= 4 * 4 * 237_000 * 0.95
