"""Checkpoints: a training goes on from them bit for bit, and the last ones are kept."""

import json
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter

from chain_results import assert_same
from chain_runs import DDP, Bench
from checkpointed import Checkpoints, Training, filled, names
from damaged import change_a_byte
from living import LONGEST_SECONDS
from own_tasks import OWN, spec
from plans import CPU, only
from relay.base.errors import UserError
from relay.chain.files import described
from relay.chain.generators import generators, restore
from relay.chain.saving import DONE, WRITING, Parts, Saver
from relay.chain.sealed import MANIFEST, complete, manifest, seal
from relay.chain.signals import DEADLINE, Interruption
from relay.process.generators import alike
from relay.process.ranks import Ranks
from relay.run_folder.sound_checkpoints import damage


def test_a_tied_weight_goes_on_bit_for_bit(ranks: Ranks, prepared: Path, checkpoints: Checkpoints) -> None:
    uncut, first, second = (Training(ranks, prepared, spec(str(OWN / "tied.py"))) for _ in range(3))
    expected, losses = uncut.train(12), first.train(7)
    checkpoints.save(first.strategy, 7)
    torch.manual_seed(99)  # where another process's generator may be
    second.step = checkpoints.resume(second.strategy, 0, 12)
    assert second.step == 7
    assert losses + second.train(5) == expected
    assert_same(second.state(), uncut.state())


def test_the_margin_before_the_end_holds_two_saves_and_the_longest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    watching = Interruption(now + 100)
    assert watching.reason is None
    watching.leave_room(save_seconds=20, step_seconds=45)
    assert watching.margin_seconds == 95
    watching.leave_room(save_seconds=1, step_seconds=1)
    assert watching.margin_seconds == 95  # it never shrinks
    watching.leave_room(save_seconds=20, step_seconds=55)
    assert watching.reason == DEADLINE
    monkeypatch.setattr(time, "time", lambda: now - 3600)  # the node's clock is set back
    assert watching.reason == DEADLINE


def test_a_copy_that_the_user_made_is_neither_counted_nor_removed(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 2)
    shutil.copytree(checkpoints.directory / "step-2", checkpoints.directory / "step-2.bak")
    filled(checkpoints, training, 4, 6)
    assert complete(checkpoints.directory) == [6, 4]
    assert names(checkpoints) == ["step-2.bak", "step-4", "step-6"]


def test_only_steps_of_the_segment_are_resumed(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 4, 8)
    assert checkpoints.resume(training.strategy, 0, 6) == 4
    assert checkpoints.resume(training.strategy, 0, 8) == 8
    for first, last in ((5, 7), (9, 12)):
        with pytest.raises(UserError, match=f"no sound checkpoint for steps {first} to {last}"):
            checkpoints.resume(training.strategy, first, last)


def test_a_parameter_without_state_resumes_without(ranks: Ranks, prepared: Path, checkpoints: Checkpoints) -> None:
    """One that no gradient has reached yet: torch would give it the state of a step that it never made."""
    first, second = (Training(ranks, prepared, spec("lenet-digits")) for _ in range(2))
    for trained in (first, second):
        next(trained.strategy.model.parameters()).requires_grad_(False)
    first.train(2)
    for trained in (first, second):
        next(trained.strategy.model.parameters()).requires_grad_(True)
    checkpoints.save(first.strategy, 2)
    expected = first.train(3)
    second.step = checkpoints.resume(second.strategy, 0, 10)
    states = [len(trained.strategy.optimizer.state) for trained in (first, second)]
    assert second.train(3) == expected
    assert states[1] == states[0] - 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])  # without it, the optimiser has no state
def test_an_optimizers_numbers_go_on(ranks: Ranks, prepared: Path, checkpoints: Checkpoints, momentum: float) -> None:
    """As the steps that LAMB counts."""

    def counted(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["steps"], group["part"] = group.get("steps", 0) + 1, group.get("part", 1.0) / 3
            for each in group["params"]:
                each.grad *= group["part"] + 1 / group["steps"]

    uncut, first, second = (Training(ranks, prepared, spec("lenet-digits")) for _ in range(3))
    for each in (uncut, first, second):
        each.strategy.optimizer.param_groups[0]["momentum"] = momentum
        each.strategy.optimizer.register_step_pre_hook(counted)
    expected, losses = uncut.train(8), first.train(3)
    checkpoints.save(first.strategy, 3)
    second.step = checkpoints.resume(second.strategy, 0, 8)
    assert second.strategy.optimizer.param_groups[0]["part"] == first.strategy.optimizer.param_groups[0]["part"]
    assert losses + first.train(5) == expected
    assert losses + second.train(5) == expected


# Checkpoints that are written while the training goes on


def test_training_goes_on_while_a_checkpoint_is_written(checkpoints, training, ranks, prepared, monkeypatch) -> None:
    """It holds the step at which it began, though all has moved on before the first byte was written."""
    go, write = threading.Event(), FileSystemWriter.write_data
    monkeypatch.setattr(FileSystemWriter, "write_data", lambda *given: go.wait(LONGEST_SECONDS) and write(*given))
    training.train(4)
    saver = checkpoints.of(training.strategy).saver()
    saver.begin(4)
    expected = training.train(3)
    time.sleep(0.3)
    assert saver.progress == WRITING
    assert not saver.agree(WRITING)
    assert complete(checkpoints.directory) == []
    go.set()
    saver.finish()
    assert saver.progress == DONE
    assert saver.agree(DONE)
    assert saver.longest_save_seconds > 0.3
    again = Training(ranks, prepared)
    again.step = checkpoints.resume(again.strategy, 0, 10)
    assert again.step == 4
    assert again.train(3) == expected


# Damaged checkpoints: complete or absent, and passed over with a warning


def test_damage_falls_back(checkpoints: Checkpoints, training: Training, capsys: pytest.CaptureFixture[str]) -> None:
    """With a warning that names it; and it is replaced by the next save, not kept in place of a sound one."""
    filled(checkpoints, training, 4)
    expected = training.state()
    filled(checkpoints, training, 8)
    files = [path for path in (checkpoints.directory / "step-8").rglob("*") if path.is_file()]
    change_a_byte(max(files, key=lambda path: path.stat().st_size))
    assert checkpoints.resume(training.strategy, 0, 100) == 4
    assert_same(training.state(), expected)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: checkpoint of step 8 is passed over: ")
    assert "does not have the checksum" in line
    training.step = 4
    filled(checkpoints, training, 6)
    assert names(checkpoints) == ["step-4", "step-6"]


def test_a_part_that_a_network_filesystem_shows_late_is_waited_for(checkpoints, training, monkeypatch) -> None:
    """A manifest without it would call the checkpoint sound. It may be there, and not be listed yet."""
    write = Saver._write_part

    def with_another_node(self: Saver, place: Path, parts: Parts) -> dict[str, Any]:
        late = place.parent / "rank-1.pt"
        late.write_text("another node's")
        threading.Timer(1.0, late.rename, [place / late.name]).start()
        return write(self, place, parts) | {late.name: described(late)}

    monkeypatch.setattr(Saver, "_write_part", with_another_node)
    filled(checkpoints, training, 4)
    place = checkpoints.directory / "step-4"
    assert damage(place) is None
    assert "rank-1.pt" in manifest(place)["files"]


def test_a_part_that_never_comes_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.chain.sealed.SHOWN_WITHIN_SECONDS", 0.1)
    with pytest.raises(FileNotFoundError, match="another node has written it"):
        seal(tmp_path, 5, {"rank-1.pt": {}}, {})
    assert list(tmp_path.iterdir()) == []


# Checkpoints every so many epochs or steps, counted from the run's start, beside those by the clock


@pytest.mark.usefixtures("in_the_project")
def test_they_are_given_in_epochs_or_in_steps_but_not_in_both() -> None:
    run = only(CPU, checkpoint_every_epochs=1.5)
    assert run.length.checkpoint_every_steps == round(1.5 * run.length.steps_per_epoch)
    assert only(CPU, checkpoint_every_steps=10).length.checkpoint_every_steps == 10
    told = r"config: checkpoint_every_steps: 10 contradicts checkpoint_every_epochs 0.5; give one"
    with pytest.raises(UserError, match=told):
        only(CPU, checkpoint_every_steps=10, checkpoint_every_epochs=0.5)


# The states of the random generators in a checkpoint.


def test_every_generator_goes_on_where_it_was() -> None:
    torch.manual_seed(1)
    np.random.seed(2)  # the global one is what a user's code may draw from
    random.seed(3)
    random.gauss(0, 1)  # each of these keeps a second value for its next call
    np.random.standard_normal()
    state = generators()
    expected = draws()
    draws()
    restore(state)
    assert draws() == expected


def draws() -> list[Any]:
    return [torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1), random.random()]


@pytest.mark.slow
def test_each_replica_has_a_stream_of_its_own(bench: Bench) -> None:
    """Else all of them would drop the same units in every step."""
    chain = bench.chain("results", total_steps=1, evaluate_every_steps=1, **DDP).train(forked=True)
    one, other = (torch.load(chain.work / "step-1" / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1))
    del one["step"], other["step"]
    assert not alike(one, other)


def test_a_generators_file_that_would_run_code_is_refused(checkpoints: Checkpoints, training: Training) -> None:
    """Even one whose checksum was made to fit."""
    filled(checkpoints, training, 1)
    place = checkpoints.directory / "step-1"
    torch.save(Path("anything but tensors"), place / "rank-0.pt")
    manifest = json.loads((place / MANIFEST).read_text())
    manifest["files"]["rank-0.pt"] = described(place / "rank-0.pt")
    (place / MANIFEST).write_text(json.dumps(manifest))
    assert damage(place) is None
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        checkpoints.resume(training.strategy, 0, 10)
