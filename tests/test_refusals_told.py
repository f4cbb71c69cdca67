"""A gate that refuses a setting says so on the driver's terminal at once; a call without a usable run says that too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from relay.base.files import write_json
from relay.driver.refused import Refused, conclusion, refusal

pytest_plugins = ["results_tree"]


def verdict(folder: Path, gate: str, **found: Any) -> Path:
    path = folder / "equivalence" / "gates" / gate / "verdict.json"
    write_json(path, found)
    return path


def test_each_refusal_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict(tmp_path, "before", equivalent=False, problems=["of an earlier call"])
    refused = Refused(tmp_path)
    refused.tell()
    path = verdict(tmp_path, "ddp-1", equivalent=False, problems=["algorithm: losses", "scaled: losses"])
    verdict(tmp_path, "cpu-1", equivalent=True, problems=[])
    for _ in range(2):
        refused.tell()
    assert capsys.readouterr().err == (
        f"gate ddp-1: NOT equivalent, so the report strikes it out: algorithm: losses (and 1 more); all of it: {path}\n"
    )
    verdict(tmp_path, "ddp-1", equivalent=False, problems=["made anew"])
    os.utime(path, (1, 1))
    refused.tell()
    assert "made anew" in capsys.readouterr().err


def test_a_call_is_usable_where_one_run_is(tmp_path: Path) -> None:
    verdict(tmp_path, "refused", equivalent=False)
    verdict(tmp_path, "passed", equivalent=True)
    write_json(tmp_path / "runs" / "run-1" / "summary.json", {"status": "done"})
    write_json(tmp_path / "runs" / "run-2" / "summary.json", {"status": "failed"})
    pairs = [
        ("run-1", "refused", "fine"),
        ("run-2", "passed", "fine"),
        ("run-2", "refused", "fine"),
        ("run-3", "missing", "fine"),
        ("run-1", "missing", "fine"),
        ("run-1", "passed", "wrong"),
    ]
    checks = tmp_path / "equivalence" / "spot_checks"
    write_json(checks / "wrong" / "verdict.json", {"runs": [{"run": "run-1", "status": "failed"}]})
    useless = "2 struck out, 3 failed, 1 without a verdict of its gate"
    told = f"error: no run of this call can be used: {useless}; the report, or the lines above, say why"
    assert conclusion(pairs, tmp_path) == (told, False)
    assert conclusion([*pairs, ("run-1", "passed", "fine")], tmp_path) == (f"7 runs: 1 proven, {useless}", True)
    assert conclusion([], tmp_path) == ("", True)


def test_what_nothing_can_prove_is_usable_and_not_called_struck_out(tmp_path: Path) -> None:
    path = verdict(tmp_path, "cpu-1", equivalent=False, unprovable="the loss is no mean over samples", problems=[])
    told = "cannot tell, so its setting is measured, not proven: because the loss is no mean over samples"
    assert refusal(path) == f"gate cpu-1: {told}"
    write_json(tmp_path / "runs" / "run-1" / "summary.json", {"status": "done"})
    assert conclusion([("run-1", "cpu-1", "a")], tmp_path) == ("1 run: 1 measured, not proven", True)
    write_json(tmp_path / "runs" / "run-1" / "summary.json", {"status": "failed"})
    assert ": 1 failed; " in conclusion([("run-1", "cpu-1", "a")], tmp_path)[0]
