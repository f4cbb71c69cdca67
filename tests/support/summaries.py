"""Summaries of runs with the figures that a test needs, and records that a job would have left."""

from pathlib import Path
from typing import Any

from relay.base.files import write_text
from relay.run_folder import attempts
from relay.run_folder.summary import Summary

OF_A_RUN = {
    "run": "run-1", "setting": "setting-1", "status": "done", "attempts": 1, "samples_per_second": None,
    "measured_steps": 0, "train_seconds": None, "allocated_seconds": 0.0, "device_name": "AMD EPYC",
    "losses": {"steps": [], "values": []}, "evaluations": [], "hosts": ["node1"], "versions": {}, "code": "c0de",
    "strategy_source": "5eed",
}  # fmt: skip


def summary_of(**figures: Any) -> Summary:
    """A run that is done, with these figures."""
    return Summary.of(OF_A_RUN | figures)


def left_records(work: Path, number: int, *lines: dict[str, Any]) -> Path:
    """The file of an attempt's records, with these lines."""
    path = attempts.attempt_path(work, number)
    write_text(path, "".join(map(attempts.line_of, lines)))
    return path
