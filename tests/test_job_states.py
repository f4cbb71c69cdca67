"""Jobs that were preempted or forgotten, which the executor alone would wait for without an end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from relay.driver import job_states
from relay.slurm import commands

LOGGER = logging.getLogger(__name__)


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
