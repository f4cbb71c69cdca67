"""Spot checks: one process computes what a run recorded; what they find of wrong runs, and the job that makes them."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import spot_checked
from chain_runs import Bench, Chain
from own_tasks import spec
from relay.equivalence.plain import State
from relay.run_folder.places import Places
from relay.run_folder.spots import Spot, states_folder
from relay.spec.tasks import TaskSpec
from relay.spot_check import evaluated, stretch
from relay.spot_check.loop import Computed, Recorded
from relay.spot_check.stretch import Findings
from relay.training.changed_code import edited_since
from spot_checked import figures, kept, states, verdict
from test_any_model import written
from test_spots import planned as begun

SHORT = {"total_steps": 8, "evaluate_every_steps": 4}
# ResNet's blocks with BatchNorm, and a GPT with experts; both narrow.
NORMALISED = spec("resnet18-tiny", global_batch_size=8, width=4, train_count=301, test_count=77)
DIGITS = spec("lenet-digits")


def of(strategy: str, ranks: int = 2, **options: Any) -> dict[str, Any]:
    """A run's values: so many processes, and the strategy's options."""
    return {"strategy": strategy, "launcher": "torchrun", "devices_per_node": ranks, "options": options}


def found_of(chain: Chain) -> dict[str, Any]:
    """What is found of the run, once it is trained."""
    (found,) = verdict(chain.train(forked=True))
    return found


def passed(chain: Chain) -> dict[str, Any]:
    """The same, which has nothing against it."""
    found = found_of(chain)
    assert found["status"] == "passed", found
    return found


@pytest.mark.slow
def test_dropout_is_drawn_again_as_it_was(bench: Bench) -> None:
    values = of("pipeline_ddp", 4, stages=2, schedule="gpipe", micro_batches=2)
    found = passed(chain := bench.chain("run", **SHORT, **values))
    assert len(found["spots"]) == len(set(kept(chain).spots))
    assert max(figures(found, "update")) < 2e-6  # of 2e-5 allowed: other masks would change all of it
    assert states(chain.work) == []


@pytest.mark.slow
def test_a_run_is_computed_again_in_its_own_precision_and_parts(bench: Bench) -> None:
    found = passed(bench.chain("run", DIGITS, precision="bf16", **SHORT, **of("ddp", accumulation=2)))
    assert max(figures(found, "update")) <= 5e-3


# The job of a spot check: what it says where states are gone or damaged, what it removes, and what it remembers

OF_SIX = {"total_steps": 6, "evaluate_every_steps": 6}


def trained(bench: Bench, count: int = 1) -> list[Chain]:
    """Finished repeats of one setting."""
    first = bench.chain("results", **OF_SIX).train(forked=True)
    others = [first.planned(f"run-{number}", seed=number) for number in range(2, count + 1)]
    return [first, *(other.train(forked=True) for other in others)]


def test_a_figure_that_is_no_number_in_both_is_the_same() -> None:
    """As F1 of a class without samples, or a perplexity that overflows."""
    assert [evaluated._off(*pair) for pair in ((math.nan, math.nan), (math.inf, math.inf), (2.0, 2.5))] == [0, 0, 0.2]
    assert math.isnan(evaluated._off(math.nan, 1.0))


def test_a_state_of_the_optimizer_that_the_checkpoint_lacks_is_infinitely_far() -> None:
    plain = {"momentum_buffer of first.weight": torch.ones(2)}
    assert stretch._optimizer({}, plain) == math.inf
    assert stretch._optimizer(plain | {"step of first.weight": torch.ones(1)}, plain) == 0


def test_large_losses_that_round_alike_do_not_hide_whose_statistics_a_replica_has() -> None:
    """A loss of 1,000 in bf16 may be off by 2. Of two plain trainings, the one with the run's statistics is nearer."""
    state, (first, own, shared) = State({}, {}, {}, 1.0), ({"mean": torch.tensor([each])} for each in (0.0, 1.0, 2.0))
    run = Recorded([1000.0], state, [first, shared])
    plain = Computed([1002.0], state, [first, own], state, "none", began=[first, first])
    nearer = replace(plain, statistics=[first, shared])
    assert stretch.off(run, nearer) < 0.01 < stretch.off(run, plain)


@pytest.mark.slow
def test_what_was_checked_is_not_checked_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with a further repeat nor, where another setting's job has checked it along, by its own job."""
    first, second = trained(bench, 2)
    other = first.planned("other", setting_id="another").train(forked=True)
    before = verdict(first, beside=[other])
    assert [(each["run"], each["status"], each["generation"]) for each in before] == [(first.run.id, "passed", "first")]
    assert states(first.work) == states(other.work) == []
    checked: list[str] = []
    start = spot_checked.preloaded.start

    def noted(spec: Path, role: str, work: Path, arguments: Sequence[str], code: Path) -> int:
        checked.extend(arguments[arguments.index("--runs") + 1 :])
        return start(spec, role, work, arguments, code)

    monkeypatch.setattr(spot_checked.preloaded, "start", noted)
    found = verdict(first, second)
    assert (found[0], found[1]["status"]) == (before[0], "passed")
    assert [(each["run"], each["status"]) for each in verdict(other)] == [("other", "passed")]
    assert checked == [second.run.id]


@pytest.mark.slow
def test_a_run_without_records_or_with_a_damaged_state_is_not_checked(bench: Bench) -> None:
    (chain,) = trained(bench)
    records = shutil.move(chain.work / "records", chain.work / "aside")
    (found,) = verdict(chain)
    assert found["status"] == "not checked"
    assert "is not recorded" in found["unchecked"][0]
    shutil.move(records, chain.work / "records")
    for step in kept(chain).states:
        with (states_folder(chain.work) / f"step-{step}" / "rank-0.pt").open("ab") as stream:
            stream.write(b"x")
    (found,) = verdict(chain)
    assert found["status"] == "not checked"
    assert "checksum" in found["unchecked"][0]


# Spot checks of runs whose faults show after the watched steps, or that leave little to compare

# A hundredth of the steps follow a stretch.
LONG = {"total_steps": 400, "evaluate_every_steps": 400, "checkpoint_minutes": 10.0}
SPOTS = (Spot("random step", 30, 32), Spot("end", 398, 400))
# No evaluation comes before its states: DDP gives all replicas the first one's statistics then, too.
AWAY = (Spot("random step", 5, 7), Spot("end", 6, 8))

# A fault that shows later: two steps after each save it still trains as it should, then with another learning rate.
LATER = """self.since = getattr(self, "since", 0) + 1
        loss = super().train_step(batch)
        for parameter in self.model.parameters():
            parameter.data *= 1.0 if self.since <= 2 else 1.02
        return loss

    def save(self, directory):
        self.since = 0
        return super().save(directory)

    def unused(self):
        pass"""
# Every gradient overflows, so that no step changes anything.
OVERFLOWS = """return super().train_step(batch)

    def update(self):
        for parameter in self.model.parameters():
            parameter.grad.fill_(float("inf"))
        super().update()

    def unused(self, batch):"""


@pytest.mark.slow
def test_a_fault_that_shows_a_few_steps_after_each_save(bench: Bench) -> None:
    chain = begun(bench.chain("run", DIGITS, **LONG, **bench.strategy("later", LATER)), *SPOTS)
    found = found_of(chain)
    assert found["status"] == "failed"
    assert [problem.split(" differ ")[0] for problem in found["problems"]] == [
        "random step, steps 31 to 32: following losses"
    ]


@pytest.mark.slow
def test_a_training_in_fp16_that_overflows_at_every_step(bench: Bench) -> None:
    told = "fp16 has overflowed there and in an earlier stretch, where one plain process does not"
    found = found_of(bench.chain("run", DIGITS, precision="fp16", **SHORT, **bench.strategy("overflows", OVERFLOWS)))
    assert found["status"] == "failed"
    assert told in "\n".join(found["problems"])


@pytest.mark.slow
def test_statistics_of_right_replicas(bench: Bench) -> None:
    """Under DDP they begin each step with the first one's."""
    found = passed(begun(bench.chain("run", NORMALISED, **SHORT, **of("ddp")), *AWAY))
    assert max(figures(found, "statistics of replicas")) < 3e-6


def test_a_check_that_broke_off_is_no_pass() -> None:
    """An exception may come after a stretch that was right."""
    parts = [{"name": "losses"}]
    found = Findings("run", spots=[{"kind": "random step", "first": 5, "last": 7, "parts": parts}])
    assert found.as_dict()["status"] == "passed"
    found.broken = True
    assert found.as_dict()["status"] == "not checked"


# Spot checks of wrong runs: what begins after the gate's steps, or lies outside of what a gate trains

FOLDER = Path(__file__).parent / "strategies"
OF_TWELVE = {"total_steps": 12, "evaluate_every_steps": 6}
TWO = {"launcher": "torchrun", "devices_per_node": 2}


def of_folder(name: str) -> dict[str, Any]:
    """A strategy of `tests/strategies`."""
    return {"strategy": name, "strategy_file": str(FOLDER / f"{name}.py")}


WRONG: dict[str, tuple[TaskSpec, dict[str, Any], str]] = {
    "an evaluation of averaged parameters, which begins after the gate": (
        DIGITS,
        of_folder("unseen_evaluation_averaged") | {"total_steps": 30, "evaluate_every_steps": 30},
        "end, steps 29 to 30: test loss differs from one plain process's by ",
    ),
    "a diverged training whose losses are told as finite": (
        replace(DIGITS, learning_rate=1e12),
        of_folder("unseen_infinite_skipped"),
        "one plain process's loss is not finite there, the run recorded finite ones",
    ),
    "gradients that are sent as fp16": (DIGITS, of("ddp", compression="fp16"), "update differ"),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_run_is_told_and_its_states_stay(bench: Bench, wrong: str) -> None:
    spec, values, told = WRONG[wrong]
    found = found_of(chain := bench.chain("run", spec, **OF_TWELVE | values))
    assert found["status"] == "failed", found
    assert states(chain.work)
    assert told in (problems := "\n".join(found["problems"]))
    assert ("update" in problems) is (told == "update differ")


# The gradient of its first bias is nothing but rounding, of which NAdam makes whole steps.
BIASED = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 3, 8, 8), torch.arange(n) % 3) for n in (64, 16)]

    def model(self):
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.NAdam(parameters, self.learning_rate)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["none", "fp16"])
def test_a_bias_that_rounding_moves_hides_no_fault_in_other_tensors(sent: str, bench: Bench, tmp_path: Path) -> None:
    task = replace(written(tmp_path, BIASED), learning_rate=0.002)
    found = found_of(bench.chain("run", task, **SHORT, **of("ddp", compression=sent)))
    assert (max(figures(found, "steady update")) < 5e-6) is (sent == "none")
    assert any("steady update differs" in problem for problem in found["problems"]) is (sent == "fp16")


@pytest.mark.slow
def test_a_job_that_begins_without_the_optimizers_state(bench: Bench) -> None:
    forgets = {"options": {"fault": "ResumeWithoutMomentum"}}
    chain = bench.chain("run", DIGITS, **OF_TWELVE, **of_folder("wrong"), **TWO, **forgets)
    for first, last in ((0, 6), (6, 12)):
        assert chain.forked(first, last).status == 0
    (found,) = verdict(chain)
    assert [problem for problem in found["problems"] if problem.startswith("hop, steps 6 to 7: update")]


@pytest.mark.slow
def test_a_declared_compression_is_only_bounded(bench: Bench) -> None:
    passed(bench.chain("run", DIGITS, **OF_TWELVE, **of("ddp", compression="fp16"), lossy={"compression": 2e-3}))


@pytest.mark.slow
def test_code_that_was_edited_after_the_run_had_begun_is_told_first(bench: Bench, monkeypatch) -> None:
    wrong = bench.strategy("edited", "self.wrapper.require_backward_grad_sync = self.steps < 3", base="ddp")
    chain = bench.chain("run", DIGITS, **OF_TWELVE, **wrong, **TWO).train(forked=True)
    places = Places(chain.results, chain.run.id)
    assert edited_since(chain.run, places) == ""
    file = Path(chain.run.strategy.file)
    file.write_text(file.read_text() + "\nEDITED = True\n")
    (found,) = verdict(chain)
    told, *others = found["problems"]
    assert told.startswith("its strategy's code changed after the run had begun, which may be the reason; ")
    assert told.endswith(f"relay train-again {places.run_id}")
    assert "differ" in others[0]
    monkeypatch.setattr("relay.training.changed_code.training_source", lambda run: "today's")
    assert edited_since(chain.run, places).startswith("its strategy's code and the code that trains changed ")
