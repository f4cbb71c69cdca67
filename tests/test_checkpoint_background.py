"""Checkpoints that are written while the training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint import FileSystemWriter

from checkpointed import Training, filled
from relay.process.ranks import Ranks
from relay.run_folder import attempt_name
from relay.run_folder.sealed import complete
from relay.training.checkpoint import DONE, WRITING, Checkpoints

pytest_plugins = ["chain_runs", "checkpointed"]


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
    partial = checkpoints.directory / f"partial-{attempt_name.name()}-3"
    partial.mkdir()
    (partial / "strategy").write_text("where a folder should be")
    checkpoints.begin(training.strategy, 3)
    with pytest.raises(RuntimeError, match=r"the checkpoint of step 3 could not be saved: FileExistsError.*rank 0"):
        checkpoints.finish()
    assert complete(checkpoints.directory) == [2]
