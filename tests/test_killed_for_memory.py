"""A job that is killed for memory is tried once with more, and the user is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from relay.driver.retries import Retries
from relay.launch.launcher import KILLED
from relay.process.system import memory_kills
from relay.run_folder.known_faults import look_up


def test_words_that_say_so() -> None:
    for text in (
        "SLURM-job '7' failed, SLURM status is: 'OUT_OF_MEMORY'. ",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=2.0. Some of your processes may have been killed",
        KILLED.format(count=1),
    ):
        assert look_up(f"a line\n{text}\nanother\n", "logs")
    for text in ("torch.OutOfMemoryError: CUDA out of memory. Tried 2.00 GiB", "srun: error: c1: task 0: Killed"):
        assert look_up(text, "logs") is None


@pytest.mark.parametrize(
    ("group", "file"),
    [("0::/job/step", "job/step/memory.events"), ("9:memory:/job/step", "memory/job/step/memory.oom_control")],
)
def test_the_kernels_count(group: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(f"3:cpu:/elsewhere\n{group}\n")
    assert memory_kills(tmp_path / "cgroup", tmp_path) is None
    place = tmp_path / file
    place.parent.mkdir(parents=True)
    place.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert memory_kills(tmp_path / "cgroup", tmp_path) == 2


class Killed:
    """A gate's job that Slurm has killed for memory, as Snakemake asks about it."""

    def __init__(self, folder: Path, asks: int | None) -> None:
        self.asks = asks
        self.log = folder / "gate.log"
        self.retries = Retries(more_memory=lambda job, had_mb: self.asks)

    def tried_again(self, attempt: int, had_mb: int) -> bool:
        self.log.write_text("slurmstepd: error: Exceeded job memory limit\n")
        rule = SimpleNamespace(name="gate", restart_times=2)
        resources = {"mem_mb": had_mb}
        job = SimpleNamespace(jobid=1, attempt=attempt, log=[str(self.log)], rule=rule, resources=resources)
        job.message = "Gate: is it the same?"
        return self.retries.times(job) >= attempt


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the driver says, in a folder of its own."""
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    for name in ("info", "error"):
        monkeypatch.setattr(f"relay.driver.retries.logger.{name}", lines.append)
    return lines


def test_it_is_tried_once_with_more_and_then_given_up(tmp_path: Path, said: list[str]) -> None:
    job = Killed(tmp_path, asks=1800)
    assert job.tried_again(1, 900)
    assert said[-1].endswith("killed for memory with 900 MB a node, asks for 1800 MB now; goes on with attempt 2")
    job.asks = 3600
    assert not job.tried_again(2, 1800)
    assert "killed for memory with 1800 MB a node\n  given up  twice in a row" in said[-1]
    assert "the same call tries with 3600 MB; or let it need less" in said[-1]


def test_where_no_node_has_more_it_is_given_up_at_once(tmp_path: Path, said: list[str]) -> None:
    assert not Killed(tmp_path, asks=16000).tried_again(1, 16000)
    assert "given up  no node has more" in said[-1]
    assert "remedy    let it need less (a smaller batch, fewer data_workers" in said[-1]
