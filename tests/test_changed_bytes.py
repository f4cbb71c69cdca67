"""What a run reads, and what it is, may not change unseen: data, code, `run.json`, a checkpoint's place, records.

Each is an error with its remedy, before anything is trained; or steps that the summary misses.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from chain_runs import DIGITS, Bench, Chain
from checkpointed import Checkpoints, filled
from damaged import change_a_byte
from own_tasks import data_of
from refusals import refusal
from relay.base.errors import UserError
from relay.base.files import read_json
from relay.chain.sealed import MANIFEST
from relay.datasets import verified
from relay.process.ranks import Ranks
from relay.run_folder import attempts, snapshot
from relay.run_folder.snapshot import changed_since, freeze
from relay.run_folder.sound_checkpoints import damage
from relay.task.data import verify_on_further_nodes
from relay.training import job
from relay.training.job import Places

# Data


@pytest.fixture
def data(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset of the test's own, on a node of its own, changed long ago."""
    monkeypatch.setattr(verified.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(verified, "SETTLED_SECONDS", 0.0)
    name = data_of(DIGITS, prepared).directory_name
    folder = tmp_path / name
    shutil.copytree(prepared / name, folder)
    return folder


def test_a_byte_that_was_changed_is_found_at_once_though_size_and_times_are_as_they_were(data: Path) -> None:
    verified.check(data)
    change_a_byte(data / "train-inputs.npy")
    for _ in range(2):  # nothing is kept of a check that failed
        with pytest.raises(UserError, match=r"train-inputs.npy: was changed: SHA-256 is .*; remove the folder"):
            verified.check(data)


def test_one_process_of_each_further_node_reads_all(data: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks) -> None:
    read, whole = [], verified.sha256
    monkeypatch.setattr(verified, "sha256", lambda path: (read.append(path.name), whole(path))[1])

    def look(rank: int, local_rank: int, nodes: int = 2) -> None:
        verify_on_further_nodes(data, nodes, replace(ranks, rank=rank, local_rank=local_rank))

    change_a_byte(data / "train-inputs.npy")
    look(rank=0, local_rank=0)  # the job has looked there
    look(rank=3, local_rank=1)
    look(rank=0, local_rank=0, nodes=1)
    assert read == []
    assert "train-inputs.npy: was changed" in refusal(look, rank=2, local_rank=0)


@pytest.fixture
def chain(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Chain:
    """A run whose processes would fail the test: it has to be refused before they are started."""
    monkeypatch.setattr(job, "launch", lambda *_: pytest.fail("it was started"))
    return bench.chain("results")


def refused(chain: Chain) -> str:
    return refusal(job.run_segment, Places(chain.results, chain.run.id), 0, 60, 1)


# Code


@pytest.mark.slow
def test_a_changed_file_of_the_frozen_code_is_refused_by_the_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And made again of today's code where that is the same, because the snapshot's name says what is in it."""
    chain = bench.chain("results", **bench.strategy("edited"))
    started: list[Path] = []
    monkeypatch.setattr(job, "launch", lambda *given: (started.append(given[-1]), 1)[1])
    places = Places(chain.results, chain.run.id)
    job.run_segment(places, 0, 60, 1)
    (code,) = started
    checkpoint = chain.work / "step-5" / MANIFEST  # with one, the run keeps its code
    checkpoint.parent.mkdir()
    checkpoint.write_text("{}")
    file = code / "relay" / "training" / "trainer.py"
    file.write_text(file.read_text().replace("step += 1", "step += 2"))
    job.run_segment(places, 0, 60, 1)
    assert started == [code] * 2
    assert changed_since(code) is None
    assert "step += 1" in file.read_text()
    bench.strategy("edited", "1 + 1")
    for harm, told in (
        (lambda: file.write_text(file.read_text().replace("step += 1", "step += 2")), "was changed: "),
        (file.unlink, "was changed: "),
        (lambda: shutil.rmtree(code), "is gone; "),
    ):
        harm()
        assert f"the snapshot {code} of its code {told}" in refused(chain)
        assert f"delete {chain.declared}" in refused(chain)
    chain.start_anew("second")
    job.run_segment(places, 0, 60, 1)
    begun = read_json(chain.work / "chain.json")
    assert (begun["generation"], len(begun["attempts"])) == ("second", 1)


@pytest.mark.usefixtures("open_umask")
def test_what_another_user_puts_beside_the_frozen_code_does_not_run(tmp_path: Path) -> None:
    """The whole folder is on Python's path."""
    frozen = freeze(None, folder=tmp_path / "code")
    folders = [tmp_path / "code", *(path for path in (tmp_path / "code").rglob("*") if path.is_dir())]
    assert [path for path in folders if path.stat().st_mode & 0o022] == []
    assert {path / "__pycache__" for path in folders[2:] if path.name != "__pycache__"} <= {*folders}
    (frozen / "sitecustomize.py").write_text("print('planted')")
    assert changed_since(frozen) == "has 'sitecustomize.py' in it, which was not frozen"
    (frozen / "sitecustomize.py").unlink()
    (frozen / "relay" / "__pycache__").chmod(0o777)  # Python takes bytecode there for the file's own
    assert f"is not yours alone: {frozen}/relay/__pycache__ can be written by everyone" in (changed_since(frozen) or "")
    assert freeze(None, folder=tmp_path / "code") == frozen
    assert not (frozen / "sitecustomize.py").exists()


# run.json


def test_another_runs_specification_is_refused_and_so_is_none(chain: Chain) -> None:
    other = chain.planned("run-2")
    shutil.copy(other.declared / "run.json", chain.declared / "run.json")
    assert "is that of run run-2; start the same call again" in refused(chain)
    (chain.declared / "run.json").unlink()
    assert f"run run-1: {chain.declared}/run.json is missing; start the run through" in refused(chain)


# Checkpoints


def test_a_checkpoint_in_another_ones_place_is_passed_over(checkpoints: Checkpoints, training, capsys) -> None:
    """An older step's, copied over a newer one's; or another run's, of the same step."""
    filled(checkpoints, training, 4, 8)
    newest = checkpoints.directory / "step-8"
    shutil.rmtree(newest)
    shutil.copytree(checkpoints.directory / "step-4", newest)
    assert checkpoints.resume(training.strategy, 0, 100) == 4
    assert "step-8 holds the checkpoint of step 4: it was copied there" in capsys.readouterr().out
    other = checkpoints.directory.parent / "run-2"
    shutil.copytree(checkpoints.directory, other)
    assert damage(checkpoints.directory / "step-4") is None
    assert damage(other / "step-4") == f"{other / 'step-4'} holds a checkpoint of run run-1: it was copied there"


# Records


def test_a_changed_or_cut_line_of_the_records_counts_as_missing(tmp_path: Path) -> None:
    path = attempts.attempt_path(tmp_path, 1)
    path.parent.mkdir()
    lines = [
        attempts.line_of({"time": 1.5, "start": 0, "ranks": []}),
        attempts.line_of({"time": 2.5, "after": 0, "losses": [0.25, float("nan")], "blocks": []}),
        attempts.line_of({"time": 3.5, "after": 2, "losses": [0.125], "blocks": []}),
    ]
    path.write_text("".join(lines))
    assert [line.get("after") for line in attempts.read(tmp_path, 1).lines] == [None, 0, 2]
    path.write_text("".join([lines[0], lines[1].replace("0.25", "0.35"), lines[2]]))
    assert [line.get("after") for line in attempts.read(tmp_path, 1).lines] == [None, 2]
    path.write_text(lines[0] + lines[1][:20] + "\n" + lines[2] + lines[1][:-1])
    assert [line.get("after") for line in attempts.read(tmp_path, 1).lines] == [None, 2]
    path.write_text("".join(lines[1:]))  # without its beginning nobody knows what the attempt was
    assert not attempts.read(tmp_path, 1)


# Two jobs that freeze the same code at once: the later leaves alone what the earlier runs already


@pytest.mark.slow
def test_the_snapshot_of_a_job_that_was_quicker_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quicker: list[tuple[Path, int]] = []
    write_through = snapshot.sync

    def sync_file(path: Path) -> None:
        write_through(path)
        if not quicker:  # in the middle of the slower job's writing
            quicker.append((tmp_path, 0))
            frozen = snapshot.freeze(None, folder=tmp_path)
            quicker[0] = (frozen, frozen.stat().st_ino)

    monkeypatch.setattr(snapshot, "sync", sync_file)
    # Both have the same process number here, and so the same place to write to: another job has another.
    names = iter(("slower", "quicker"))
    monkeypatch.setattr(snapshot.os, "getpid", lambda: next(names))
    frozen = snapshot.freeze(None, folder=tmp_path)
    assert quicker == [(frozen, frozen.stat().st_ino)]
    assert [path.name for path in tmp_path.iterdir()] == [frozen.name]
