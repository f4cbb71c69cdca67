"""Jobs that were preempted or forgotten, which the executor alone would wait for without an end."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mini_slurm
from driver_runs import Workplace, until
from mini_slurm import MiniSlurm, Node, Partition
from relay.base.files import write_text
from relay.driver import job_states
from relay.slurm import commands

LOGGER = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniSlurm]:
    """A node where jobs of the partition high preempt those of low."""
    mini_slurm.require()
    nodes, partitions = [Node("n1", cpus=4)], [Partition("low", ("n1",), default=True), Partition("high", ("n1",))]
    with MiniSlurm(tmp_path_factory.mktemp("slurm"), nodes, partitions, namespaces=False) as cluster:
        configure(cluster, "PartitionName=high", "PartitionName=high PriorityTier=9")
        configure(cluster, "GresTypes", "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nGresTypes")
        yield cluster


def configure(cluster: MiniSlurm, old: str, new: str) -> None:
    conf = cluster.folder / "slurm.conf"
    # At once: a node that reads the file while it is written finds it empty, and ends.
    write_text(conf, re.sub(old, new, conf.read_text()))
    cluster.run("scontrol", "reconfigure")


@pytest.fixture
def place(own_cluster: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    monkeypatch.setenv("PATH", own_cluster.environment["PATH"])
    place = Workplace(own_cluster, tmp_path)
    yield place
    place.end()
    configure(own_cluster, r"(?m)^MinJobAge=\d+", "MinJobAge=600")
    own_cluster.tidy()


def preempt(place: Workplace) -> None:
    place.cluster.run("sbatch", "--partition=high", "--cpus-per-task=4", "--wrap=sleep 3", cwd=place.folder)


@pytest.mark.long
@pytest.mark.slurm
def test_a_preempted_job_is_tried_again(place: Workplace) -> None:
    """No other test has a job preempted."""
    driver = place.drive("--retries", "1", seconds=8, first=1)
    until(lambda: len(place.lines("started.txt")) == 1, "the job runs")
    preempt(place)
    printed, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, printed
    (first, *_) = (job["JobId"] for job in place.submitted())
    assert f"Job {first}: preempted; " in printed
    assert [job["JobState"] for job in place.submitted()] == ["PREEMPTED", "COMPLETED", "COMPLETED"]
    assert place.lines("started.txt") == ["first.0.txt", "first.0.txt", "last.txt"]
    assert place.lines("ended.txt") == ["first.0.txt", "last.txt"]


def answers(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A squeue that answers the question for one job."""
    squeue = folder / "squeue"
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0)


FORGOTTEN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
DOWN = "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1"


def test_a_job_is_given_up_after_two_answers_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(tmp_path, monkeypatch, FORGOTTEN)
    states = job_states.JobStates(preempted_is_final=True)
    states.ask_for(["1", "2", "3_7"])
    told = {"2": "RUNNING"}
    assert states.complete(told, True, LOGGER) == told
    assert states.complete({"1": "RUNNING", **told}, True, LOGGER) == {"1": "RUNNING", **told}  # it was a slip
    assert states.complete(told, True, LOGGER) == told
    assert states.complete(told, True, LOGGER) == {"1": "FAILED", **told}
    assert states.complete(told, False, LOGGER) == told  # accounting may be late


def test_a_job_is_not_given_up_on_the_word_of_one_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = job_states.JobStates(preempted_is_final=True)
    states.ask_for(["1"])
    answers(tmp_path, monkeypatch, DOWN)
    assert [states.complete({}, True, LOGGER) for _ in range(3)] == [{}, {}, {}]
    answers(tmp_path, monkeypatch, "echo 1 1 PENDING")  # a site has given it another name
    assert states.complete({}, True, LOGGER) == {"1": "PENDING"}
    answers(tmp_path, monkeypatch, FORGOTTEN)
    assert states.complete({}, True, LOGGER) == {"1": "FAILED"}
