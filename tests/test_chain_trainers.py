"""Lightning's and Hugging Face's Trainers as chains: stopped, killed, damaged, and bit for bit as uncut."""

import errno
import importlib
import io
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stacks
from chain_results import assert_same
from hooked import empty, link
from preloaded import spawned
from relay.chain import ChainError, peers
from relay.environments.versioned import site_packages
from relay.process.ranks import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("transformers==5.23.0", "accelerate==1.15.0")


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with Hugging Face's transformers and this one's packages."""
    python, inside = empty(tmp_path_factory.mktemp("huggingface"))
    for number, options in enumerate(((), ("--no-deps",))):  # accelerate alone, for it would bring another torch
        wanted = ["install", "--quiet", *options, "--target", str(inside), VERSIONS[number]]
        done = subprocess.run([sys.executable, "-m", "pip", *wanted], capture_output=True, text=True)
        if "No matching distribution" in done.stderr:
            pytest.skip(f"the package index has no {VERSIONS[number]}")
        assert done.returncode == 0, done.stderr
    link(inside, Path(sysconfig.get_path("purelib")))
    return python


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the stack's and this one's packages."""
    made = stacks.provide("lightning").parents[1]
    python, inside = empty(tmp_path_factory.mktemp("lightning"))
    link(inside, Path(sysconfig.get_path("purelib")), site_packages(made))
    return python


def trained(python: Path, of: str, folder: Path, *given: str, ranks: int = 1, **options: str) -> tuple[int, str]:
    """The status of the Trainer's script in this folder, and what it says."""
    folder.mkdir(exist_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    script = ROOT / "tests" / "support" / f"{of}_script.py"
    command = [python, "-m", "relay.chain", python, *(torchrun if ranks > 1 else []), script, "model.pt", *given]
    own = {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1", "DEVICES": str(ranks), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=os.environ | own | options, capture_output=True, text=True)
    return done.returncode, done.stderr


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def evaluated(folder: Path) -> list[int]:
    """The steps after which Hugging Face's Trainer has evaluated, as its last checkpoint tells."""
    place = max((folder / "checkpoints").glob("checkpoint-*"), key=lambda place: int(place.name.partition("-")[2]))
    told = json.loads((place / "trainer_state.json").read_text())["log_history"]
    return [line["step"] for line in told if "eval_loss" in line]


@pytest.mark.long  # Hugging Face's packages are hundreds of megabytes
@pytest.mark.parametrize(
    ("of", "steps", "places", "part"),
    [("lightning", 24, "step-*", "trainer.ckpt"), ("huggingface", 12, "checkpoint-*", "manifest.json")],
)
def test_stopped_killed_and_damaged_it_ends_bit_for_bit(request, tmp_path: Path, of, steps, places, part) -> None:
    """No other test kills a Trainer, or has Hugging Face's."""
    python, uncut, cut = request.getfixturevalue(of), tmp_path / "uncut", tmp_path / "cut"
    status, told = trained(python, of, uncut, ranks=2)
    assert status == 0, told
    status, told = trained(python, of, cut, str(steps // 4 + 1), "SIGTERM", ranks=2)
    assert status == 75, told
    assert "which is saved: SIGTERM" in told
    status, told = trained(python, of, cut, str(steps - 2), "SIGKILL", ranks=2)
    assert status not in (0, 75), told
    assert "goes on from step" in told
    last = max(int(place.name.partition("-")[2]) for place in (cut / "checkpoints").glob(places))
    damaged = cut / "checkpoints" / places.replace("*", str(last)) / part
    damaged.write_bytes(bytes(damaged.stat().st_size))
    status, told = trained(python, of, cut, ranks=2)
    assert status == 0, told
    assert f"the checkpoint of step {last} is passed over" in told
    assert_same(weights(cut), weights(uncut))


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "told_at", "stops"),
    [("epoch", 13, 14), ("epoch", 15, 16), ("best", 14, 16)],
    ids=["within an epoch", "at its end, which the Trainer saves again", "after a step that is evaluated and no best"],
)
def test_a_stop_is_saved_beside_what_the_trainer_saves_itself(huggingface, tmp_path, strategy, told_at, stops) -> None:
    python, uncut, cut = huggingface, tmp_path / "uncut", tmp_path / "cut"
    assert trained(python, "huggingface", uncut, STRATEGY=strategy)[0] == 0
    status, told = trained(python, "huggingface", cut, str(told_at), "SIGTERM", STRATEGY=strategy)
    assert (status, f"stops after step {stops}, which is saved" in told) == (75, True), told
    status, told = trained(python, "huggingface", cut, STRATEGY=strategy)
    assert (status, f"goes on from step {stops} (" in told) == (0, True), told
    assert_same(weights(cut), weights(uncut))
    assert strategy == "best" or evaluated(cut) == evaluated(uncut)


def test_gathered_gradients_other_validations_and_workers(lightning: Path, tmp_path: Path) -> None:
    options = {"GATHER": "2", "VALIDATE": "0.5", "WORKERS": "2", "PLAIN": "1"}
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    assert trained(lightning, "lightning", uncut, **options)[0] == 0
    status, told = trained(lightning, "lightning", cut, "18", "SIGINT", **options)
    assert status == 75, told
    status, told = trained(lightning, "lightning", cut, **options)
    assert status == 0, told
    assert_same(weights(cut), weights(uncut))


# Without the Trainers' packages

STAND_INS = {
    "transformers": ("TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments"),
    "lightning": (),
    "lightning.pytorch": (),
    "lightning.pytorch.callbacks": ("Checkpoint",),
}
GIVEN: Any = SimpleNamespace(output_dir="checkpoints", world_size=1)


@pytest.fixture(params=["huggingface", "lightning"])
def of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, in_a_script: None) -> Iterator[Any]:
    """A Trainer's callback."""
    for package, names in STAND_INS.items():
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(**dict.fromkeys(names, object)))
    name = f"relay.chain.{request.param}"
    sys.modules.pop(name, None)
    yield importlib.import_module(name).ChainCallback
    del sys.modules[name]


def begun(callback: Any) -> tuple[Any, str | None]:
    """A job's callback, and the checkpoint from which it goes on."""
    chain = callback()
    try:
        return chain, chain.newest(SimpleNamespace(args=GIVEN, world_size=1))
    finally:
        if chain._lock:
            chain._lock.close()


def written(step: int) -> Any:
    """The state of a Trainer that has just written a checkpoint."""
    place = Path(GIVEN.output_dir) / f"checkpoint-{step}"
    place.mkdir()
    (place / "model").write_text("weights")
    return SimpleNamespace(global_step=step)


@pytest.mark.parametrize("of", ["huggingface"], indirect=True)
def test_a_kill_before_the_first_checkpoint_is_sealed_begins_anew(of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning's are written under another name."""
    assert begun(of)[1] is None
    written(3)
    chain, place = begun(of)
    assert (place, "warning: checkpoints/checkpoint-3 was" in capsys.readouterr().err) == (None, True)
    assert sorted(path.name for path in Path("checkpoints").glob("*check*")) == ["unsealed-checkpoint-3"]
    chain._seal(GIVEN, written(3))
    assert begun(of)[1] == "checkpoints/checkpoint-3"
    (note := Path("checkpoints/checkpoint-3/note")).touch()  # this is the user's to mend
    with pytest.raises(ChainError, match="no checkpoint is sound"):
        begun(of)
    note.unlink()
    Path("checkpoints/checkpoint-3/model").write_text("after the epoch")  # the Trainer writes it again, and is killed
    assert begun(of)[1] is None


@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])
@pytest.mark.parametrize("of", ["huggingface"], indirect=True)
def test_where_a_whole_checkpoint_was_lost_nothing_begins_anew(of: Any, stops: bool) -> None:
    """The user has something to lose, also where the only checkpoint is the one at a stop."""
    chain, _ = begun(of)
    chain._ranks, chain._saved = peers.Peers(), 3
    chain._seal(GIVEN, state := written(3))
    if stops:
        chain._stopped = "SIGTERM"
        with pytest.raises(SystemExit):
            chain.on_train_end(GIVEN, state, None)
    else:
        chain.on_step_begin(GIVEN, state, None)
    Path("checkpoints/checkpoint-3/model").write_text("damaged")
    with pytest.raises(ChainError, match="no checkpoint is sound"):
        begun(of)


def test_a_disk_that_is_full_for_a_moment_ends_no_training(tmp_path: Path) -> None:
    spawned(_on_a_full_disk, 2, tmp_path)


def _on_a_full_disk(ranks: Ranks, folder: Path) -> None:
    """The rank that does not write waits in the Trainer's barrier."""
    os.chdir(folder)
    for package, names in STAND_INS.items():
        sys.modules[package] = SimpleNamespace(**dict.fromkeys(names, object))
    (chain, _), full = begun(importlib.import_module("relay.chain.lightning").ChainCallback), [True, False, True, True]

    def save_checkpoint(path: Path, weights_only: bool) -> None:
        assert chain._interruption.saving(), "a last resort would end it midway"
        if full.pop(0) and ranks.rank == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if ranks.rank == 0:
            path.write_text("state")
        ranks.barrier()

    chain._agreement = SimpleNamespace(ranks=chain._ranks)
    chain._trainer = SimpleNamespace(
        fit_loop=SimpleNamespace(_data_fetcher=None),
        _logger_connector=SimpleNamespace(_callback_metrics={}),
        strategy=SimpleNamespace(barrier=lambda name: ranks.barrier(), load_checkpoint=Path.read_text),
        save_checkpoint=save_checkpoint,
    )
    with redirect_stderr(io.StringIO()) as said:
        chain._saver.save_last(3)
    warning = "step 3 could not be saved: No space left on device (rank 0); the next save tries again"
    assert (warning in said.getvalue(), chain._saver.saved) == (ranks.rank == 0, 3)
    assert not chain._interruption.saving()
    with pytest.raises(ChainError, match=r"step 4 could not be saved.*make room there, and start the same job again"):
        chain._saver.save_last(4)


def test_while_one_rank_reads_a_large_checkpoint_the_others_wait_long(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def gather(every: list[Any], value: Any, group: str) -> None:
        used.append(group)
        every[:] = [value for _ in every]

    groups: Any = ("control", "saving")
    monkeypatch.setattr(peers.Peers, "meet", lambda: peers.Peers(0, 2, *groups))
    monkeypatch.setattr(peers.dist, "all_gather_object", gather)
    chain, _ = begun(of)
    assert used[-2:] == ["saving"] * 2
    if hasattr(chain, "on_save"):
        used.clear()
        chain.on_save(GIVEN, written(3), None)
        assert set(used) == {"saving"}
