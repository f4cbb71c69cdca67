"""The equivalence gate: right strategies pass, each planted wrong one is caught, by the part that is made for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from gate_runs import FEW_STEPS, Gates, planned
from relay.equivalence.job import run_reference
from relay.launch.launcher import launch
from relay.spec.identity import source_digest, strategy_sources
from relay.spec.strategy_files import find


@pytest.mark.slow
def test_a_right_strategy_passes(gates: Gates) -> None:
    verdict = gates.verdict("ddp", 2, start=launch)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    assert {part["name"] for part in verdict["parts"]} == PARTS
    assert all(part["passed"] and part["figure"] <= part["limit"] for part in verdict["parts"])
    assert verdict["max_loss_difference"] <= 1e-9
    assert "100 steps" in verdict["parts"][0]["what"]
    assert verdict["samples_per_rank"] == [8.0, 8.0]
    (own,) = verdict["own_batches"]
    assert (own["global_batch_size"], own["learning_rate"], own["problems"]) == (64, 0.02, [])
    assert own["samples_per_rank"] == [32.0, 32.0]
    assert {part["name"] for part in own["parts"]} == TRIALS - SCALED
    assert "2 steps" in own["parts"][0]["what"]
    assert verdict["strategy_source"] == source_digest(strategy_sources(find()["ddp"]))
    ring = 62_006 * 8  # LeNet's parameters in float64: what a ring's all-reduce of two sends from each rank
    assert all(0.95 * ring < count < 1.1 * ring for count in verdict["bytes_sent_per_step"])


# Wrong strategies are caught

ALGORITHM = {"algorithm: losses", "algorithm: parameters", "evaluation"}
SCALED = {"scaled: losses", "scaled: parameters"}
SMOOTH = {"smooth twin: parameters"}
TRIALS = ALGORITHM | SCALED | SMOOTH | {"own precision: losses"}
# What test_gate_between.py is about.
AS_TRAINED = {f"as trained: {compared}" for compared in ("losses", "parameters", "outputs")}
RESUMED = {f"between steps: {compared}" for compared in ("losses", "parameters", "outputs", "state")}
BETWEEN = AS_TRAINED | RESUMED | {f"own precision: {compared}" for compared in ("state", "resumed", "outputs")}
PARTS = TRIALS | BETWEEN


@dataclass(frozen=True)
class Planted:
    """A wrong strategy, or a fault of `strategies/wrong.py`: parts that must fail, or pass; what is told beside them.

    `where`: where it differs first.
    """

    strategy: str
    fails: frozenset[str] | set[str] = frozenset()
    passes: frozenset[str] | set[str] = frozenset()
    says: tuple[str, ...] = ()
    where: str = ""

    def __str__(self) -> str:
        return self.strategy.removeprefix("wrong_")


WRONG = [
    # What the algorithm's own comparison in float64 sees
    Planted("SingleBias", fails=ALGORITHM, where="first differs at step 1 in fc3.bias ("),
    # What only a scaled loss sees
    Planted("Clipping", fails=SCALED, passes={*ALGORITHM, "own precision: losses"}),
    # What only the run's own precision sees
    Planted("FP16Compression", fails=SMOOTH, passes=ALGORITHM | SCALED),
    Planted("Noise", fails=SMOOTH, passes=ALGORITHM | SCALED),
    # What no number shows: who did the work
    Planted(
        "WholeBatch",
        passes=PARTS,
        says=("division of work: samples should be divided, but a rank has 100%",),
    ),
    Planted(
        "SamplesTwice",
        fails=ALGORITHM,
        says=(
            "division of work: step 0: 16 samples reached the loss, the global batch has 16: 2 more than once, 2 never",
        ),
    ),
    # What no number shows: modes and names
    Planted(
        "wrong_mode",
        passes=PARTS,
        says=("evaluation: it leaves the model in another mode",),
    ),
    # Failing is no proof of equivalence
    Planted("wrong_crash", says=("it cannot run this training: wrong_crash.py:",)),
]


@pytest.mark.slow
@pytest.mark.parametrize("planted", WRONG, ids=str)
def test_a_wrong_strategy_is_caught(gates: Gates, planted: Planted, capfd: pytest.CaptureFixture[str]) -> None:
    own = planted.strategy.startswith("wrong_")
    asked = (planted.strategy, {}) if own else ("wrong", {"fault": planted.strategy})
    verdict = gates.verdict(asked[0], steps=FEW_STEPS, options=asked[1])
    assert verdict["equivalent"] is False
    failed = {part["name"] for part in verdict["parts"] if not part["passed"]}
    passed = {part["name"] for part in verdict["parts"] if part["passed"]}
    assert planted.fails <= failed
    assert planted.passes <= passed
    # Each failed part is told as a problem, and nothing else but what the strategy is planted for.
    for part in planted.fails:
        assert any(problem.startswith(f"{part}: ") for problem in verdict["problems"])
    for text in planted.says:
        assert any(problem.startswith(text) for problem in verdict["problems"]), verdict["problems"]
    if not planted.says:
        assert len(verdict["problems"]) == len(failed)
    if planted.where:
        assert verdict["where"].startswith(planted.where)
        (line,) = [line for line in capfd.readouterr().out.splitlines() if "NOT equivalent" in line]
        assert f"; {verdict['where']}" in line


@pytest.mark.slow
def test_a_reference_without_its_dataset_says_so_and_is_not_tried_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, asked = planned("cpu")
    asked.write(tmp_path / "reference.json")
    output = tmp_path / "reference.pt"
    assert run_reference(tmp_path / "reference.json", tmp_path, output, attempt=1) == 1
    assert not output.exists()
    first = capfd.readouterr().err
    assert "Traceback" not in first
    (told,) = [line for line in first.splitlines() if line.startswith("reference failed: ")]
    assert str(tmp_path / "datasets" / "digits") in told
    assert run_reference(tmp_path / "reference.json", tmp_path, output, attempt=2) == 1
    assert capfd.readouterr().err == told.replace("failed:", "failed before, not tried again:") + "\n"
