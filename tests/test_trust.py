"""Nothing of a checkpoint is loaded that another user could have written: refused with the reason, unread."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chain_runs import Bench
from checkpointed import Training, filled
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.process.ranks import Ranks
from relay.run_folder import sealed, trust
from relay.training import job
from relay.training.checkpoint import Checkpoints
from relay.training.job import Places

pytest_plugins = ["chain_runs", "checkpointed"]

OTHERS = 54321  # a user, and a group, that are not this one's
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


def give_away(path: Path) -> None:
    os.chown(path, OTHERS, -1)


def open_to_group(path: Path) -> None:
    os.chown(path, -1, OTHERS)
    path.chmod(path.stat().st_mode | 0o020)


def open_to_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def link(path: Path) -> None:
    aside = path.rename(path.parents[1] / "aside")
    path.symlink_to(aside)


OF_A_CHECKPOINT: list[tuple[str, Callable[[Path], None], str, str]] = [
    ("file", open_to_group, "strategy/.metadata", "can be written by the members of group 54321: chmod -R g-w,o-w "),
    ("manifest", open_to_all, sealed.MANIFEST, "can be written by everyone: chmod -R g-w,o-w "),
    ("file", link, "rng-0.pt", "is a symbolic link"),
    ("further file", lambda place: (place / "more.pt").touch(), ".", "more.pt is not in the manifest"),
]


@as_root
@pytest.mark.parametrize(
    ("harm", "name", "told"),
    [case[1:] for case in OF_A_CHECKPOINT],
    ids=[f"{c[0]}: {c[3][:40]}" for c in OF_A_CHECKPOINT],
)
def test_a_checkpoint_that_is_not_the_users_alone_is_refused(
    checkpoints: Checkpoints,
    training: Training,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Path], None],
    name: str,
    told: str,
) -> None:
    filled(checkpoints, training, 4)
    place = checkpoints.directory / "step-4"
    assert sealed.damage(place) is None
    harm(place / name)
    monkeypatch.setattr(training.strategy, "load", lambda *_: pytest.fail("it was loaded"))
    assert told in (sealed.damage(place) or "")
    with pytest.raises(UserError, match="no sound checkpoint"):
        checkpoints.resume(training.strategy, 0, 10)


@as_root
@pytest.mark.parametrize(
    ("level", "harm", "told"),
    [
        (2, give_away, "belongs to another user (54321), who could replace there what jobs run or load"),
        (1, open_to_group, "can be written by the members of group 54321, who could replace there what jobs run or"),
        (0, open_to_all, "can be written by everyone, who could replace there what jobs run or load"),
    ],
    ids=["results", "results/checkpoints", "the run's folder"],
)
def test_a_folder_above_into_which_others_can_write_is_refused(
    tmp_path: Path,
    ranks: Ranks,
    training: Training,
    monkeypatch: pytest.MonkeyPatch,
    level: int,
    harm: Callable[[Path], None],
    told: str,
) -> None:
    """Also where a link leads there."""
    work = tmp_path / "results" / "checkpoints" / "run-1"
    trust.make_own(work)
    checkpoints = Checkpoints(work, ranks)
    filled(checkpoints, training, 4)
    assert trust.unsafe_above(work, "owner") is None
    harm((work, *work.parents)[level])
    monkeypatch.setattr(training.strategy, "load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(UserError) as caught:
        checkpoints.resume(training.strategy, 0, 10)
    assert told in str(caught.value)
    with pytest.raises(UserError, match=re.escape(str(caught.value))):  # nor adopted, nor exported
        next(sealed.sound(work, 0, 10))
    if harm is not give_away:
        assert f"chmod g-w,o-w {(work, *work.parents)[level]}, or write `checkpoint_writers: " in str(caught.value)
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine" / "checkpoints").symlink_to(work.parent)
    assert trust.unsafe_above(tmp_path / "mine" / "checkpoints" / "run-1", "owner") == str(caught.value)


@as_root
def test_what_the_config_allows_is_loaded(tmp_path: Path, ranks: Ranks, training: Training) -> None:
    work = tmp_path / "results" / "checkpoints" / "run-1"
    trust.make_own(work)
    filled(Checkpoints(work, ranks), training, 4)
    for harm, allowed, refused in (
        (open_to_group, ("group", "everyone"), ("owner",)),
        (open_to_all, ("everyone",), ("owner", "group")),
    ):
        for path in (work.parent, work / "step-4"):
            harm(path)
        for writers in refused:
            with pytest.raises(UserError):
                Checkpoints(work, ranks, writers).resume(training.strategy, 0, 10)  # type: ignore[arg-type]
        for writers in allowed:
            assert Checkpoints(work, ranks, writers).resume(training.strategy, 0, 10) == 4  # type: ignore[arg-type]
    give_away(work / "step-4" / "rng-0.pt")
    with pytest.raises(UserError):
        Checkpoints(work, ranks, "everyone").resume(training.strategy, 0, 10)


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["code/0123", "runs/0123", "equivalence/gates/0123"])
def test_nothing_is_run_from_a_folder_that_others_can_write_to(tmp_path: Path, name: str) -> None:
    """A specification of a job names its interpreter."""
    with umask(0o002):
        trust.make_all_own(tmp_path / "results", "owner")
        write_json(tmp_path / "results" / "runs" / "a" / "run.json", {})
    assert all(path.stat().st_mode & 0o022 == 0 for path in (tmp_path / "results").rglob("*"))
    for path in (tmp_path / "results" / name, tmp_path / "results"):
        path.mkdir(exist_ok=True, parents=True)
        path.chmod(0o777)
        with pytest.raises(UserError, match=f"{path} can be written by everyone, who could replace there what jobs "):
            trust.make_all_own(tmp_path / "results", "owner")
        trust.make_all_own(tmp_path / "results", "everyone")
        path.chmod(0o755)


@as_root
def test_neither_the_program_nor_snakemakes_folder_is_left_to_others(tmp_path: Path) -> None:
    """Under umask 002 both are writable for the group. Snakemake keeps its environments there."""
    results, state = tmp_path / "results", tmp_path / ".snakemake"
    sources = [tmp_path / "Snakefile", tmp_path / "scripts"]
    (sources[1] / "relay").mkdir(parents=True)
    (state / "conda").mkdir(parents=True)
    for path in (sources[0], code := sources[1] / "relay" / "code.py"):
        path.touch(0o644)
    (bytecode := sources[1] / "__pycache__").mkdir()
    for path in (made := (state / "conda", state, bytecode)):
        open_to_group(path)
    trust.make_all_own(results, "owner", sources)
    assert [path for path in made if path.stat().st_mode & 0o022] == []
    open_to_group(code)
    with pytest.raises(UserError, match=f"{code} can be written by the members of group 54321, who could change what "):
        trust.make_all_own(results, "owner", sources)
    trust.make_all_own(results, "group", sources)
    code.chmod(0o644)
    give_away(state)
    with pytest.raises(UserError, match=rf"{state} belongs to another user \(54321\), who could replace there what "):
        trust.make_all_own(results, "owner", sources)


def test_a_job_says_so_before_it_trains(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when the first checkpoint would be loaded, hours later."""
    chain = bench.chain("results")
    chain.results.chmod(0o777)
    monkeypatch.setattr(job, "launch", lambda *_: pytest.fail("it was started"))
    with pytest.raises(UserError, match=f"{chain.results} can be written by everyone"):
        job.run_segment(Places(chain.results, chain.run.id), 0, 60, 1)
