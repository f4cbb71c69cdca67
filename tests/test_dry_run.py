"""What `snakemake -n` and `snakemake plan` say of settings that cannot run."""

from __future__ import annotations

from pathlib import Path

from local_driver import ROOT, LocalDriver
from relay.base.files import write_json
from relay.run_folder.layout import check_layout

SKIPPED = "skipped: single_gpu: needs a GPU, device is cpu; use cpu instead"


def test_where_nothing_can_run_the_call_fails_with_one_message(tmp_path: Path) -> None:
    driver = LocalDriver(tmp_path, {"device": "cpu", "comparisons": [{"strategy": "single_gpu"}]})
    status, printed = driver.call("all")
    assert status == 1
    assert f"error: nothing can run, every setting is skipped:\n{SKIPPED}\n" in printed
    assert printed.count("error: ") == 1
    assert "Traceback" not in printed
    assert "Job stats" not in printed
    assert printed.count(SKIPPED) == 1, "the reason stands once"
    assert "what" not in printed, "no table without a row"


def test_a_dry_run_ends_with_what_is_skipped_and_why(tmp_path: Path) -> None:
    driver = LocalDriver(tmp_path, {"device": "cpu", "comparisons": [{"strategy": "single_gpu"}, {"strategy": "cpu"}]})
    told = tmp_path / "results" / "logs" / "segment" / "step-1.ending.json"
    told.parent.mkdir(parents=True)
    told.write_text("{}")
    status, printed = driver.call("-n")
    assert status == 0
    assert printed.splitlines()[-1] == SKIPPED
    assert told.exists()  # another driver may be at work here, and need it


def test_a_call_tells_which_runs_are_of_other_code_than_today(tmp_path: Path) -> None:
    """Before it says that nothing is to be done for them."""
    driver = LocalDriver(tmp_path, {"device": "cpu", "comparisons": [{"strategy": "cpu"}]})
    check_layout(tmp_path / "results")
    write_json(tmp_path / driver.trained, {"strategy_source": "older"})
    status, printed = driver.call("-n", driver.trained)
    assert status == 0
    (line,) = [line for line in printed.splitlines() if line.startswith("warning: strategy cpu: its code has changed.")]
    script = ROOT / "scripts" / "train_again.py"  # the call was given in another folder
    assert line.endswith(f"To train with today's code from the start: python {script} {driver.run.id}")
