"""Checkpoints: complete or absent, and never the last one to be lost."""

from __future__ import annotations

import errno
import fcntl
import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from chain_runs import DIGITS, DROPOUT, LIKE_MNIST, VECTORS
from relay import strategies
from relay.base.errors import UserError
from relay.base.files import sha256
from relay.base.lock import exclusive
from relay.process.interruption import Interruption
from relay.process.ranks import Ranks
from relay.run_folder import sealed
from relay.run_folder.sealed import MANIFEST, complete, damage, seal
from relay.spec.dataset import DatasetSpec
from relay.spec.tasks import TaskSpec, task
from relay.strategies.base import Strategy
from relay.task.data import Resident, Split, batch_indices
from relay.task.task import Task
from relay.training.checkpoint import DONE, WRITING, Checkpoints, generators, restore_generators
from relay.training.evaluation import Evaluation
from relay.training.trainer import Trainer

pytest_plugins = ["chain_runs"]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """This process alone, with real process groups."""
    yield Ranks.join("cpu", "gloo")
    dist.destroy_process_group()


@pytest.fixture
def checkpoints(tmp_path: Path, ranks: Ranks) -> Checkpoints:
    return Checkpoints(tmp_path / "run-1", ranks)


class Training:
    """A strategy with its batches, trained step by step."""

    def __init__(
        self,
        ranks: Ranks,
        prepared: Path,
        spec: TaskSpec = DROPOUT,
        its: DatasetSpec = LIKE_MNIST,
        precision: str = "fp32",
    ) -> None:
        self.batch = spec.global_batch_size
        its_task = Task(spec, its.classes, 5, precision, its.train_count // self.batch, 100)
        self.strategy: Strategy = strategies.load("cpu")(its_task, ranks, self.batch, {})
        self.split = Split(prepared / its.directory_name, "train", spec)
        self.data = Resident(self.split, ranks.device, torch.float32)
        torch.manual_seed(5)
        self.step = 0

    def train(self, steps: int) -> list[float]:
        """Losses of this many further steps."""
        losses = []
        for step in range(self.step, self.step + steps):
            self.strategy.set_learning_rate(self.strategy.task.learning_rate(step))
            losses.append(
                self.strategy.train_step(*self.data.fetch(batch_indices(len(self.split), self.batch, 5, step)))
            )
        self.step += steps
        return [loss.item() for loss in losses]

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.strategy.whole_model().items()}


@pytest.fixture
def training(ranks: Ranks, prepared: Path) -> Training:
    return Training(ranks, prepared)


def filled(checkpoints: Checkpoints, training: Training, *steps: int) -> None:
    """Train to each step and save there."""
    for step in steps:
        training.train(step - training.step)
        checkpoints.save(training.strategy, step)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.directory.iterdir() if path.is_dir())


# Generators


def test_every_generator_goes_on_where_it_was() -> None:
    torch.manual_seed(1)
    np.random.seed(2)  # the global one is what a user's code may draw from
    random.seed(3)
    random.gauss(0, 1)  # each of these keeps a second value for its next call
    np.random.standard_normal()
    state = generators()
    expected = draws()
    draws()
    restore_generators(state)
    assert draws() == expected


def draws() -> list[Any]:
    return [torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1), random.random()]


def test_the_state_of_the_generators_is_read_without_pickle(tmp_path: Path) -> None:
    """`weights_only` refuses anything that could run code."""
    torch.save(generators(), tmp_path / "rng.pt")
    before = draws()
    restore_generators(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert draws() == before


def test_a_generators_file_that_would_run_code_is_refused(checkpoints: Checkpoints, training: Training) -> None:
    """Even one whose checksum was made to fit."""
    filled(checkpoints, training, 1)
    place = checkpoints.directory / "step-1"
    torch.save(Path("anything but tensors"), place / "rng-0.pt")
    manifest = json.loads((place / MANIFEST).read_text())
    manifest["files"]["rng-0.pt"] = {
        "bytes": (place / "rng-0.pt").stat().st_size,
        "sha256": sha256(place / "rng-0.pt"),
    }
    (place / MANIFEST).write_text(json.dumps(manifest))
    assert damage(place) is None
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        checkpoints.resume(training.strategy, 0, 10)


# Saving and going on


@pytest.mark.parametrize(
    ("spec", "its"),
    [
        (DROPOUT, LIKE_MNIST),  # Adadelta, dropout, a schedule of steps
        (task("lenet-digits"), DIGITS),  # SGD with momentum
        (task("linear-random10"), VECTORS),  # SGD without any state
    ],
    ids=lambda value: value.name,
)
def test_a_resumed_training_goes_on_bit_for_bit(
    ranks: Ranks, prepared: Path, checkpoints: Checkpoints, spec: TaskSpec, its: DatasetSpec
) -> None:
    uncut = Training(ranks, prepared, spec, its)
    expected = uncut.train(12)
    first = Training(ranks, prepared, spec, its)
    losses = first.train(7)
    checkpoints.save(first.strategy, 7)
    second = Training(ranks, prepared, spec, its)
    torch.manual_seed(99)  # where another process's generator may be
    second.step = checkpoints.resume(second.strategy, 0, 12) or 0
    assert second.step == 7
    assert losses + second.train(5) == expected
    wanted = uncut.state()
    assert all(torch.equal(value, wanted[name]) for name, value in second.state().items())


def test_saving_changes_nothing(ranks: Ranks, prepared: Path, checkpoints: Checkpoints) -> None:
    """A run with many checkpoints ends as one with none."""
    plain, saving = Training(ranks, prepared), Training(ranks, prepared)
    torch.manual_seed(5)
    expected = plain.train(6)
    torch.manual_seed(5)
    losses = []
    for step in range(1, 7):
        losses += saving.train(1)
        checkpoints.save(saving.strategy, step)
    assert losses == expected


def test_the_last_two_are_kept(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 1, 2, 5, 9)
    assert names(checkpoints) == ["step-5", "step-9"]


def test_a_copy_that_the_user_made_is_neither_counted_nor_removed(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 2)
    shutil.copytree(checkpoints.directory / "step-2", checkpoints.directory / "step-2.bak")
    filled(checkpoints, training, 4, 6)
    assert complete(checkpoints.directory) == [6, 4]
    assert names(checkpoints) == ["step-2.bak", "step-4", "step-6"]


def test_what_a_save_takes_is_known_to_later_jobs(checkpoints: Checkpoints, training: Training, ranks: Ranks) -> None:
    """Else each would find out at its end, when it may be too late."""
    assert checkpoints.longest_save_seconds == 0
    filled(checkpoints, training, 2)
    took = checkpoints.longest_save_seconds
    assert took > 0
    later = Checkpoints(checkpoints.directory, ranks).longest_save_seconds
    assert later == pytest.approx(took, rel=0.5, abs=0.1)


@pytest.mark.parametrize(("deadline", "known", "seconds"), [(None, 0, 600), (1e9, 0, 60), (1e9, 5, 600)])
def test_the_first_save_is_soon_where_the_job_will_end(deadline: float | None, known: float, seconds: float) -> None:
    asked = SimpleNamespace(
        run=SimpleNamespace(length=SimpleNamespace(checkpoint_minutes=10)),
        interruption=Interruption(deadline=deadline),
        checkpoints=SimpleNamespace(longest_save_seconds=known),
    )
    assert Trainer._save_every_seconds(asked) == seconds  # type: ignore[arg-type]


def test_the_margin_before_the_end_holds_two_saves_and_the_longest_step() -> None:
    now = time.time()
    watching = Interruption(deadline=now + 100)
    assert watching.reason is None
    watching.leave_room(save_seconds=20, step_seconds=45)
    assert watching.margin_seconds == 95
    watching.leave_room(save_seconds=1, step_seconds=1)
    assert watching.margin_seconds == 95  # it never shrinks
    watching.leave_room(save_seconds=20, step_seconds=55)
    assert watching.reason == "deadline"


def test_ten_is_newer_than_nine(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 8, 9, 10)
    assert names(checkpoints) == ["step-10", "step-9"]
    assert checkpoints.resume(training.strategy, 0, 100) == 10


def test_a_leftover_of_a_save_that_was_killed_is_never_resumed_and_goes(
    checkpoints: Checkpoints, training: Training
) -> None:
    """Killed at its last moment: everything is there, but not under its final name."""
    filled(checkpoints, training, 2)
    shutil.copytree(checkpoints.directory / "step-2", checkpoints.directory / "partial-3")
    assert checkpoints.resume(training.strategy, 0, 100) == 2
    filled(checkpoints, training, 4)
    assert names(checkpoints) == ["step-2", "step-4"]


def test_only_steps_of_the_segment_are_resumed(checkpoints: Checkpoints, training: Training) -> None:
    filled(checkpoints, training, 4, 8)
    assert checkpoints.resume(training.strategy, 0, 6) == 4
    assert checkpoints.resume(training.strategy, 0, 8) == 8
    assert checkpoints.resume(training.strategy, 5, 7) is None
    assert checkpoints.resume(training.strategy, 9, 12) is None


def test_a_training_that_starts_again_keeps_its_own_checkpoints(
    checkpoints: Checkpoints, training: Training, ranks: Ranks, prepared: Path
) -> None:
    """What lies beyond the step that it has come to belongs to an older attempt: it must not push out the new ones."""
    filled(checkpoints, training, 40, 41)
    again = Training(ranks, prepared)
    filled(checkpoints, again, 3)
    assert names(checkpoints) == ["step-3"]
    filled(checkpoints, again, 6, 9)
    assert names(checkpoints) == ["step-6", "step-9"]


# In the background


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No file of a checkpoint is written until this is set."""
    go, write = threading.Event(), FileSystemWriter.write_data

    def write_data(*given: Any) -> Any:
        assert go.wait(60)
        return write(*given)

    monkeypatch.setattr(FileSystemWriter, "write_data", write_data)
    yield go
    go.set()


def test_training_goes_on_while_a_checkpoint_is_written_and_it_holds_the_step_at_which_it_began(
    checkpoints: Checkpoints, training: Training, ranks: Ranks, prepared: Path, held: threading.Event
) -> None:
    """Parameters, optimizer and generators, though all of them have moved on before the first byte was written."""
    training.train(4)
    checkpoints.begin(training.strategy, 4)
    expected = training.train(3)
    time.sleep(0.3)
    assert checkpoints.progress == WRITING
    assert not checkpoints.agree(WRITING)
    assert complete(checkpoints.directory) == []
    held.set()
    checkpoints.finish()
    assert checkpoints.progress == DONE
    assert checkpoints.agree(DONE)
    assert checkpoints.longest_save_seconds > 0.3
    again = Training(ranks, prepared)
    again.step = checkpoints.resume(again.strategy, 0, 10) or 0
    assert again.step == 4
    assert again.train(3) == expected


def test_a_save_that_fails_in_the_background_is_an_error_with_its_reason(
    checkpoints: Checkpoints, training: Training
) -> None:
    filled(checkpoints, training, 2)
    training.train(1)
    (checkpoints.directory / "partial-3").mkdir()
    (checkpoints.directory / "partial-3" / "strategy").write_text("where a folder should be")
    checkpoints.begin(training.strategy, 3)
    with pytest.raises(RuntimeError, match=r"the checkpoint of step 3 could not be saved: FileExistsError.*rank 0"):
        checkpoints.finish()
    assert complete(checkpoints.directory) == [2]


def test_a_checkpoint_holds_tensors_alone(checkpoints: Checkpoints, training: Training) -> None:
    """All else torch would read back with pickle; what may run code is the metadata, whose checksum is known."""
    filled(checkpoints, training, 1)
    saved = FileSystemReader(checkpoints.directory / "step-1" / "strategy").read_metadata().state_dict_metadata
    assert {type(entry) for entry in saved.values()} == {TensorStorageMetadata}
    assert {name.split(".")[0] for name in saved} == {"model", "optimizer"}


def test_the_scale_of_fp16_goes_on_where_it_was(ranks: Ranks, prepared: Path, checkpoints: Checkpoints) -> None:
    """And a run that has none yet, because it goes on from another precision's, keeps its first."""
    first, second, third = (Training(ranks, prepared, precision="fp16") for _ in range(3))
    assert first.strategy.scaler
    assert second.strategy.scaler
    assert third.strategy.scaler
    first.train(2)
    first.strategy.scaler.update(8192.0)
    checkpoints.save(first.strategy, 2)
    assert checkpoints.resume(second.strategy, 0, 10) == 2
    assert second.strategy.scaler.state_dict() == first.strategy.scaler.state_dict()
    assert second.strategy.scaler.get_scale() == 8192.0
    other = Training(ranks, prepared)
    other.train(3)
    checkpoints.save(other.strategy, 3)
    scale = third.strategy.scaler.get_scale()
    assert checkpoints.resume(third.strategy, 0, 10) == 3
    assert third.strategy.scaler.get_scale() == scale
    third.step = 3
    third.train(1)


def test_a_parameter_without_state_has_none_after_resuming(
    ranks: Ranks, prepared: Path, checkpoints: Checkpoints
) -> None:
    """One that no gradient has reached yet: torch would give it the state of a step that it never made."""
    spec = task("lenet-digits")
    first, second = (Training(ranks, prepared, spec, DIGITS) for _ in range(2))
    for trained in (first, second):
        next(trained.strategy.model.parameters()).requires_grad_(False)
    first.train(2)
    for trained in (first, second):
        next(trained.strategy.model.parameters()).requires_grad_(True)
    checkpoints.save(first.strategy, 2)
    expected = first.train(3)
    second.step = checkpoints.resume(second.strategy, 0, 10) or 0
    states = [len(trained.strategy.optimizer.state) for trained in (first, second)]
    assert second.train(3) == expected
    assert states[1] == states[0] - 1


# Damage


def truncate(place: Path) -> None:
    path = largest(place)
    path.write_bytes(path.read_bytes()[:-1])


def change_a_byte(place: Path) -> None:
    path = largest(place)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove_a_file(place: Path) -> None:
    (place / "rng-0.pt").unlink()


def cut_the_manifest(place: Path) -> None:
    (place / MANIFEST).write_text((place / MANIFEST).read_text()[:40])


def empty_the_manifest(place: Path) -> None:
    (place / MANIFEST).write_bytes(b"")


def fill_the_manifest_with_rubbish(place: Path) -> None:
    (place / MANIFEST).write_bytes(b"\xff\xfe\x00")


def make_the_manifest_something_else(place: Path) -> None:
    (place / MANIFEST).write_text('["step", 8]')


def largest(place: Path) -> Path:
    return max((p for p in place.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


DAMAGES = [
    (truncate, "does not have the checksum"),
    (change_a_byte, "does not have the checksum"),
    (remove_a_file, "rng-0.pt is missing"),
    (cut_the_manifest, f"{MANIFEST} cannot be read"),
    (empty_the_manifest, f"{MANIFEST} cannot be read"),
    (fill_the_manifest_with_rubbish, f"{MANIFEST} cannot be read"),
    (make_the_manifest_something_else, f"{MANIFEST} cannot be read"),
]


@pytest.mark.parametrize(("harm", "told"), DAMAGES)
def test_a_damaged_newest_one_falls_back_to_the_one_before(
    checkpoints: Checkpoints,
    training: Training,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    told: str,
) -> None:
    """With a warning that names it; and it is replaced by the next save, not kept in place of a sound one."""
    filled(checkpoints, training, 4)
    expected = training.state()
    filled(checkpoints, training, 8)
    harm(checkpoints.directory / "step-8")
    assert checkpoints.resume(training.strategy, 0, 100) == 4
    assert all(torch.equal(value, expected[name]) for name, value in training.state().items())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: checkpoint of step 8 is passed over: ")
    assert told in line
    training.step = 4
    filled(checkpoints, training, 6)
    assert names(checkpoints) == ["step-4", "step-6"]


def test_a_part_that_a_network_filesystem_shows_late_is_waited_for(tmp_path: Path) -> None:
    """A manifest without it would call the checkpoint sound."""
    (tmp_path / "rng-0.pt").write_text("mine")
    late = threading.Timer(1.0, lambda: (tmp_path / "rng-1.pt").write_text("another node's"))
    late.start()
    seal(tmp_path, 5, 2, {"rng-0.pt", "rng-1.pt"})
    assert set(json.loads((tmp_path / MANIFEST).read_text())["files"]) == {"rng-0.pt", "rng-1.pt"}
    late.join()


def test_a_part_that_never_comes_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "SHOWN_WITHIN_SECONDS", 0.1)
    with pytest.raises(FileNotFoundError, match="another node has written it"):
        seal(tmp_path, 5, 2, {"rng-1.pt"})
    assert not (tmp_path / MANIFEST).exists()


def test_a_sound_one_is_no_warning(
    checkpoints: Checkpoints, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(checkpoints, training, 4)
    assert damage(checkpoints.directory / "step-4") is None
    checkpoints.resume(training.strategy, 0, 100)
    assert capsys.readouterr().out == ""


def test_without_any_there_is_nothing_to_go_on_from(checkpoints: Checkpoints, training: Training) -> None:
    assert checkpoints.resume(training.strategy, 0, 100) is None


def test_all_damaged_is_nothing_to_go_on_from(
    checkpoints: Checkpoints, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(checkpoints, training, 4, 8)
    for step in (4, 8):
        truncate(checkpoints.directory / f"step-{step}")
    assert checkpoints.resume(training.strategy, 0, 100) is None
    assert capsys.readouterr().out.count("warning: checkpoint of step") == 2


# The directory and its only trainer


def test_a_second_trainer_waits_and_then_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.base.lock.WAIT_SECONDS", 0.5)
    held = exclusive(tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path}: another process trains this run"):
        exclusive(tmp_path)
    del held
    assert exclusive(tmp_path)


# Evaluation


@pytest.mark.parametrize("batch", [64, 77, 101, 128])
def test_no_sample_of_the_test_set_counts_twice(ranks: Ranks, prepared: Path, batch: int) -> None:
    """Batches that do not divide it, one larger than all of it: always the plain mean over its 101 samples."""
    its_task = Task(DROPOUT, LIKE_MNIST.classes, 5, "fp64", 1, 1)
    strategy = strategies.load("cpu")(its_task, ranks, batch, {})
    split = Split(prepared / LIKE_MNIST.directory_name, "test", DROPOUT)
    assert len(split) == 101
    loss, accuracy = Evaluation(split, its_task, strategy, batch).measure()
    inputs, targets = Resident(split, ranks.device, torch.float64).fetch(torch.arange(101))
    outputs = strategy.model.eval()(inputs)
    assert accuracy == (outputs.argmax(1) == targets).double().mean().item()
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, targets).item(), rel=1e-12)


def test_evaluation_leaves_the_training_as_it_was(ranks: Ranks, prepared: Path) -> None:
    """It draws nothing for dropout, and dropout is at work again afterwards."""
    plain, watched = Training(ranks, prepared), Training(ranks, prepared)
    test = Split(prepared / LIKE_MNIST.directory_name, "test", DROPOUT)
    evaluation = Evaluation(test, watched.strategy.task, watched.strategy, watched.batch)
    torch.manual_seed(5)
    expected = plain.train(4)
    torch.manual_seed(5)
    losses = []
    for _ in range(4):
        losses += watched.train(1)
        assert evaluation.measure() == evaluation.measure()
    assert losses == expected


def test_regression_is_evaluated_without_accuracy(ranks: Ranks, prepared: Path) -> None:
    spec = task("linear-random10")
    trained = Training(ranks, prepared, spec, VECTORS)
    split = Split(prepared / VECTORS.directory_name, "test", spec)
    loss, accuracy = Evaluation(split, trained.strategy.task, trained.strategy, 32).measure()
    inputs, targets = Resident(split, ranks.device, torch.float32).fetch(torch.arange(len(split)))
    assert accuracy is None
    assert loss == pytest.approx(torch.nn.functional.mse_loss(trained.strategy.model(inputs), targets).item(), rel=1e-5)


def test_a_file_system_without_locks_gets_a_warning_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    exclusive(tmp_path).close()
    assert "has no locks" in capsys.readouterr().err
