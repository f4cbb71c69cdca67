"""A gate that refuses a setting says so on the driver's terminal at once; a call without a usable run says that too."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from relay.base.files import write_json
from relay.driver.refused import conclusion, refusal
from relay.spec.run import OwnBatch
from snakemake_calls import snakemake


def verdict(folder: Path, gate: str, **found: Any) -> Path:
    path = folder / "equivalence" / "gates" / gate / "verdict.json"
    write_json(path, found)
    return path


def test_a_call_is_usable_where_one_run_is(tmp_path: Path) -> None:
    verdict(tmp_path, "refused", equivalent=False)
    verdict(tmp_path, "passed", equivalent=True)
    write_json(tmp_path / "runs" / "run-1" / "summary.json", {"status": "done"})
    write_json(tmp_path / "runs" / "run-2" / "summary.json", {"status": "failed"})
    pairs = [("run-1", "refused", "fine"), ("run-2", "passed", "fine"), ("run-2", "refused", "fine")]
    pairs += [("run-3", "missing", "fine"), ("run-1", "missing", "fine"), ("run-1", "passed", "wrong")]
    checks = tmp_path / "equivalence" / "spot_checks"
    write_json(checks / "wrong" / "verdict.json", {"runs": [{"run": "run-1", "status": "failed"}]})
    useless = "2 struck out, 3 failed, 1 without a verdict of its gate"
    told = f"error: no run of this call can be used: {useless}; the report, or the lines above, say why"
    assert conclusion(pairs, tmp_path) == (told, False)
    assert conclusion([*pairs, ("run-1", "passed", "fine")], tmp_path) == (f"7 runs: 1 proven, {useless}", True)
    assert conclusion([], tmp_path) == ("", True)


def test_a_batch_that_the_gate_refuses_is_nothing_against_the_runs_of_another(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"parts": [], "problems": [], "notes": []}
    own = {f"run-{at}": OwnBatch(global_batch_size=size, learning_rate=0.1) for at, size in ((1, 64), (2, 512))}
    found = [{"equivalent": True, **nothing}, {"equivalent": False, **nothing, "problems": ["differs"]}]
    entries = [asdict(each) | told for each, told in zip(own.values(), found, strict=True)]
    verdict(tmp_path, "ddp", equivalent=False, own_batches=entries, **nothing)
    for run in own:
        write_json(tmp_path / "runs" / run / "summary.json", {"status": "done"})
    runs = [(run, "ddp", run) for run in own]
    assert conclusion(runs, tmp_path, own) == ("2 runs: 1 proven, 1 struck out", True)


def test_what_nothing_can_prove_is_usable_and_not_called_struck_out(tmp_path: Path) -> None:
    path = verdict(tmp_path, "cpu-1", equivalent=False, unprovable="the loss is no mean over samples", problems=[])
    told = "cannot tell, so its setting is measured, not proven: because the loss is no mean over samples"
    assert refusal(path) == f"gate cpu-1: {told}"
    write_json(tmp_path / "runs" / "run-1" / "summary.json", {"status": "done"})
    assert conclusion([("run-1", "cpu-1", "a")], tmp_path) == ("1 run: 1 measured, not proven", True)
    write_json(tmp_path / "runs" / "run-1" / "summary.json", {"status": "failed"})
    assert ": 1 failed; " in conclusion([("run-1", "cpu-1", "a")], tmp_path)[0]


# What `snakemake -n` and `snakemake plan` say of settings that cannot run

SKIPPED = "skipped: single_gpu: needs a GPU, device is cpu; use cpu instead"


@pytest.mark.slow
def test_where_nothing_can_run_the_call_fails_with_one_message(tmp_path: Path) -> None:
    status, printed = snakemake(tmp_path, {"device": "cpu", "comparisons": [{"strategy": "single_gpu"}]}, "all")
    assert status == 1
    assert f"error: nothing can run, every setting is skipped:\n{SKIPPED}\n" in printed
    assert printed.count("error: ") == printed.count(SKIPPED) == 1, "the reason stands once"
    assert [noise for noise in ("Traceback", "Job stats", "what") if noise in printed] == [], "no table without a row"
