"""The equivalence gate: right strategies pass, each planted wrong one is caught, by the part that is made for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import test_gate_between
from gate_runs import FEW_STEPS, FOLDER, Gates, planned
from relay.base.ending import INTERRUPTED
from relay.equivalence.job import run_reference
from relay.launch.launcher import launch
from relay.spec.identity import source_digest, strategy_sources
from relay.spec.requirements import find


def test_one_reference_serves_all_strategies_of_a_task() -> None:
    references = {planned(strategy, devices)[1].id for strategy, devices in (("cpu", 1), ("ddp", 2), ("ddp", 4))}
    assert len(references) == 1
    assert references != {planned("cpu", precision="fp64")[1].id}
    assert references == {planned("cpu", global_batch_size=32)[1].id}  # proven at the same small batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "devices"),
    [pytest.param("cpu", 1, marks=pytest.mark.long), ("ddp", 2), pytest.param("ddp", 4, marks=pytest.mark.long)],
)
def test_a_right_strategy_passes(gates: Gates, strategy: str, devices: int) -> None:
    verdict = gates.verdict(strategy, devices, start=launch)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    assert {part["name"] for part in verdict["parts"]} == PARTS
    assert all(part["passed"] and part["figure"] <= part["limit"] for part in verdict["parts"])
    assert verdict["max_loss_difference"] <= 1e-9
    assert "100 steps" in verdict["parts"][0]["what"]
    assert verdict["samples_per_rank"] == [16 / devices] * devices
    (own,) = verdict["own_batches"]
    assert (own["global_batch_size"], own["learning_rate"], own["problems"]) == (64, 0.02, [])
    assert own["samples_per_rank"] == [64 / devices] * devices
    assert {part["name"] for part in own["parts"]} == TRIALS - SCALED
    assert "2 steps" in own["parts"][0]["what"]
    assert verdict["strategy_source"] == source_digest(strategy_sources(find()[strategy]))
    if devices > 1:
        gradients = 62_006 * 8  # LeNet's parameters, in float64
        ring = 2 * (devices - 1) / devices * gradients  # what a ring's all-reduce sends from each rank
        assert all(0.95 * ring < count < 1.1 * ring for count in verdict["bytes_sent_per_step"])


@pytest.mark.slow
def test_a_right_strategy_of_a_further_folder_passes(gates: Gates) -> None:
    verdict = gates.verdict("right_own_loop", steps=FEW_STEPS)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    assert verdict["strategy_source"] == source_digest(strategy_sources(FOLDER / "right_own_loop.py"))


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
    """A wrong strategy: parts that must fail, parts that must pass, and problems told beside the parts."""

    strategy: str
    fails: frozenset[str] | set[str] = frozenset()
    passes: frozenset[str] | set[str] = frozenset()
    says: tuple[str, ...] = ()
    options: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.strategy.removeprefix("wrong_"), *(str(value) for _, value in self.options)])


WRONG = [
    # What the algorithm's own comparison in float64 sees
    Planted("wrong_average_skipped", fails=TRIALS),
    Planted("wrong_sum", fails=TRIALS),
    Planted("wrong_learning_rate", fails=ALGORITHM),
    Planted("wrong_single_bias", fails=ALGORITHM),
    Planted(
        "wrong_stops_early",
        fails={"algorithm: parameters", "evaluation"},
        says=(
            f"algorithm: {FEW_STEPS - 1} steps were trained, of {FEW_STEPS}",
            f"division of work: step {FEW_STEPS - 1}: 0 samples reached the loss",
        ),
    ),
    Planted("wrong_nan_loss", fails={"algorithm: losses"}, passes={"algorithm: parameters", *SMOOTH}),
    # What only a scaled loss sees
    Planted("wrong_clipping", fails=SCALED, passes={*ALGORITHM, "own precision: losses"}),
    Planted("wrong_clipping", fails=SCALED, passes=PARTS - SCALED, options=(("max_norm", 1e6),)),
    # What only the run's own precision sees
    Planted("wrong_fp16_compression", fails=SMOOTH, passes=ALGORITHM | SCALED),
    Planted("wrong_bf16_compression", fails=SMOOTH, passes=ALGORITHM | SCALED),
    Planted("wrong_autocast", fails=SMOOTH, passes=ALGORITHM | SCALED),
    # What no number shows: who did the work
    Planted(
        "wrong_alone", fails=TRIALS, says=("division of work: rank 0 sent 0 bytes a step; expected 49605 or more",)
    ),
    Planted(
        "wrong_whole_batch",
        passes=PARTS,
        says=("division of work: samples should be divided, but a rank has 100%",),
    ),
    Planted(
        "wrong_whole_batch_undeclared",
        passes=PARTS,
        says=("division of work: nothing is divided: a rank has all samples, parameters, gradients, optimizer",),
    ),
    Planted(
        "wrong_division_claimed",
        passes=PARTS,
        says=("division of work: optimizer should be divided, but a rank has 100%",),
    ),
    Planted(
        "wrong_samples_twice",
        fails=ALGORITHM,
        says=(
            "division of work: step 0: 16 samples reached the loss, the global batch has 16: 2 more than once, 2 never",
        ),
    ),
    Planted(
        "wrong_same_slice",
        fails=ALGORITHM,
        says=(
            "division of work: not exactly one process reports for each replica",
            "division of work: step 0: 16 samples reached the loss, the global batch has 16: 8 more than once, 8 never",
        ),
    ),
    Planted(
        "wrong_last_sample_dropped",
        fails=ALGORITHM,
        says=(
            "division of work: step 0: 14 samples reached the loss, the global batch has 16: 0 more than once, 2 never",
        ),
    ),
    Planted("wrong_threads", passes=PARTS, says=("threads: rank 0 computes in 3, declared are 1",)),
    # What no number shows: modes and names
    Planted(
        "wrong_mode",
        passes=PARTS,
        says=("evaluation: it leaves the model in another mode",),
    ),
    Planted(
        "wrong_evaluation_mode",
        passes=PARTS,
        says=("algorithm: it trains in evaluation mode, where dropout is off",),
    ),
    Planted(
        "wrong_names",
        passes={"algorithm: losses", "evaluation"},
        says=("algorithm: names of parameters differ from the reference's: ['conv1.bias', 'conv1.weight',",),
    ),
    # Failing is no proof of equivalence
    Planted("wrong_crash", says=("it cannot run this training: wrong_crash.py:",)),
    Planted("wrong_second_rank_crashes", says=("it cannot run this training: wrong_second",)),
]


def test_every_wrong_strategy_has_its_test() -> None:
    tested = {planted.strategy for planted in WRONG} | {"wrong_killed"}
    tested.add("wrong_pipeline_static_graph")  # in test_pipelines.py: it takes four processes
    tested |= {"wrong_beyond_eight", "wrong_no_room", "wrong_work_whole_when_large"}  # in test_own_batches.py
    tested |= {"wrong_clips_its_slice", "wrong_clips_its_stage"}  # in test_odd_models.py
    tested.add("wrong_dropout_on_all_gpus")  # in test_pretended_gpu.py
    tested |= {planted.strategy for planted in test_gate_between.WRONG} | {"wrong_stale_checkpoint"}  # in gate_where
    assert tested == {path.stem for path in FOLDER.glob("wrong_*.py")}


# Further ways into the same parts: in the long tests.
TOO = {
    *("wrong_sum", "wrong_learning_rate", "wrong_clipping-1000000.0", "wrong_bf16_compression", "wrong_same_slice"),
    *("wrong_whole_batch_undeclared", "wrong_division_claimed", "wrong_last_sample_dropped", "wrong_evaluation_mode"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted",
    [pytest.param(each, marks=[pytest.mark.long] * (f"wrong_{each}" in TOO)) for each in WRONG],
    ids=str,
)
def test_a_wrong_strategy_is_caught(gates: Gates, planted: Planted) -> None:
    verdict = gates.verdict(planted.strategy, steps=FEW_STEPS, options=dict(planted.options))
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


@pytest.mark.slow
def test_a_gate_that_is_killed_has_no_verdict_and_is_worth_a_retry(
    gates: Gates, capfd: pytest.CaptureFixture[str]
) -> None:
    status, output = gates.judge("wrong_killed", steps=FEW_STEPS)
    assert status == INTERRUPTED
    assert not output.exists()
    assert "its processes ended without a word" in capfd.readouterr().err


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
