"""The table of all gates: what a verdict's row says, and a short proof as its user runs it."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from gate_runs import planned
from living import until
from relay.equivalence.campaign import ended_after, markdown, row
from results_tree import rows

ROOT = Path(__file__).resolve().parents[1]
PART = {"trial": "algorithm", "passed": True}
SAID = {"parts": [PART | {"compared": "losses", "figure": 2e-15}, PART | {"compared": "outputs", "figure": 0.0}]}
SAID |= {"problems": [], "bytes_held_share": {"parameters": [0.5, 1.0]}}
SAID |= {"samples_per_rank": [32.0, 32.0], "bytes_sent_per_step": [500, 400]}


def test_a_row_says_what_the_gate_found() -> None:
    """Also where nothing can be proven: there is no problem then, for no strategy is to blame."""
    gate, _ = planned("ddp")
    found = row(gate, {**SAID, "equivalent": False, "unprovable": "the loss is a sum"})
    assert (found["strategy"], found["processes"], found["equivalent"], found["problems"]) == ("ddp", 2, False, "")
    assert (found["fp64_losses"], found["fp64_outputs"], found["smooth_update"]) == (2e-15, 0.0, None)
    assert (found["parameters_share"], found["gradients_share"], found["bytes_sent_per_step"]) == (1.0, None, 400)
    table = markdown(pd.DataFrame([found]))
    assert "| NO |" in table
    assert "the loss is a sum" in table


def test_a_limit_that_was_kept_ends_nothing_later() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with ended_after(0.1):
            pass
        time.sleep(0.3)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == []


@pytest.mark.slow
def test_a_short_proof_finds_the_right_one_right_and_the_wrong_one_wrong(tmp_path: Path) -> None:
    comparisons = [{"strategy": "cpu"}, {"strategy": "single_gpu"}, {"strategy": "wrong_sum", "devices_per_node": 2}]
    # So few epochs leave no step of a run to be timed.
    config = {"task": "lenet-digits", "device": "cpu", "epochs": 0.3, "comparisons": comparisons}
    config["strategy_folders"] = [str(ROOT / "tests" / "strategies")]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    words = ["prove", "mine.yaml", "--steps", "20", "--precision", "fp64"]
    command = [sys.executable, ROOT / "scripts" / "main.py", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "skipped: lenet-digits, single_gpu on 1: single_gpu needs a GPU" in done.stdout
    assert "2 cells, 1 failed" in done.stdout
    assert re.search(r"wrong_sum.*: NOT equivalent: [^\n]{,300}; the table has all of it, ", done.stdout)
    found = {line["strategy"]: line for line in rows(tmp_path / "results/proof", "table.csv")}
    assert found["cpu"]["equivalent"] == "True"
    assert found["wrong_sum"]["equivalent"] == "False"
    assert float(found["wrong_sum"]["fp64_losses"]) > 1e-3


@pytest.mark.slow
def test_an_interruption_ends_the_proof_and_not_a_gate_alone(tmp_path: Path) -> None:
    config = {"task": "lenet-digits", "comparisons": [{"strategy": "cpu"}], "device": "cpu"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, ROOT / "scripts" / "main.py", "prove", "mine.yaml", "--steps", "100000"]
    with subprocess.Popen(command, cwd=tmp_path) as proof:
        try:
            until(lambda: any(tmp_path.rglob("reference.log")), "a reference is trained")
            proof.send_signal(signal.SIGTERM)
            assert proof.wait(60) == -signal.SIGTERM
        finally:
            proof.kill()
    assert not any(tmp_path.rglob("verdict.json"))
