"""A job that Slurm itself starts again, as after a lost node, ends with the reason when it comes no further.

The driver sees none of its ends, so that the job itself counts.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chain_runs import Bench, Chain
from relay.base.files import read_json, write_json
from relay.chain import sealed
from relay.training import job
from relay.training.job import Places

pytest_plugins = ["chain_runs"]


@pytest.fixture
def chain(bench: Bench) -> Chain:
    return bench.chain("results")


@pytest.fixture
def started(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The attempts whose processes were started; each is killed with its node."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    found: list[int] = []

    def launch(spec: Path, role: str, work: Path, arguments: list[str], code: Path) -> int:
        found.append(int(arguments[arguments.index("--attempt") + 1]))
        return -9

    monkeypatch.setattr(job, "launch", launch)
    return found


def reached(chain: Chain, step: int) -> None:
    place = chain.work / f"step-{step}"
    place.mkdir(parents=True)
    write_json(place / sealed.MANIFEST, {"step": step, "files": {}})


def run(chain: Chain, restarts: int = 0) -> int:
    os.environ["SLURM_RESTART_COUNT"] = str(restarts)  # Slurm does not set it in a job's first start
    return job.run_segment(Places(chain.results, chain.run.id), 0, 60, 1)


@pytest.mark.slow
def test_two_starts_without_progress_end_it_with_the_reason(
    chain: Chain, started: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert [run(chain, restarts) for restarts in range(3)] == [75, 75, 1]
    assert started == [1, 2]
    told = "Slurm has started job 17 again and again: 2 attempts in a row came no further than step 0"
    assert told in capsys.readouterr().err
    assert len(read_json(chain.work / "chain.json")["attempts"]) == 2


@pytest.mark.slow
def test_with_progress_it_goes_on_without_a_count(
    chain: Chain, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    for number in range(1, 7):
        assert run(chain, number - 1) == 75
        if number % 2:  # each second attempt comes further
            reached(chain, number)
    assert started == list(range(1, 7))
