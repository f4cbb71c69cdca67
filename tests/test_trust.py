"""Nothing of a checkpoint is loaded that another user could have written: refused with the reason, unread."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chain_runs import Bench
from checkpointed import Checkpoints, Training, filled
from refusals import refusal
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.chain import writers
from relay.chain.sealed import MANIFEST
from relay.process.ranks import Ranks
from relay.run_folder import sound_checkpoints
from relay.run_folder.results_folder import keep_others_out
from relay.run_folder.sound_checkpoints import LEVELS
from relay.training import job
from relay.training.job import Places

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


@as_root
@pytest.mark.parametrize(
    ("harm", "name", "told"),
    [
        (give_away, "strategy/.metadata", "belongs to another user (54321); remove it, or give a folder on "),
        (open_to_all, MANIFEST, "can be written by everyone; chmod o-w it, or give a folder on "),
        (link, "rank-0.pt", "is a link"),
        (lambda place: (place / "more.pt").touch(), ".", "more.pt is not in the manifest"),
    ],
)
def test_a_checkpoint_that_is_not_the_users_alone_is_refused(
    checkpoints: Checkpoints, training: Training, harm: Callable[[Path], None], name: str, told: str
) -> None:
    filled(checkpoints, training, 4)
    place = checkpoints.directory / "step-4"
    assert sound_checkpoints.damage(place) is None
    harm(place / name)
    vars(training.strategy)["load"] = lambda *_: pytest.fail("it was loaded")
    assert told in (sound_checkpoints.damage(place) or "")
    assert "no sound checkpoint" in refusal(checkpoints.resume, training.strategy, 0, 10)


@pytest.mark.parametrize("level", [3, 1, 0], ids=["above results", "results/checkpoints", "the run's folder"])
def test_a_folder_above_into_which_everybody_can_write_is_refused(
    tmp_path: Path, ranks: Ranks, training: Training, level: int
) -> None:
    """Also where a link leads there."""
    work = tmp_path / "results" / "checkpoints" / "run-1"
    writers.make_own(work)
    checkpoints = Checkpoints(work, ranks)
    filled(checkpoints, training, 4)
    assert writers.unsafe_above(work) is None
    open_to_all((work, *work.parents)[level])
    vars(training.strategy)["load"] = lambda *_: pytest.fail("it was loaded")
    told = f"{(work, *work.parents)[level]} can be written by everyone; chmod o-w it, or give a folder on another disk"
    assert told in refusal(checkpoints.resume, training.strategy, 0, 10)
    assert told in refusal(next, sound_checkpoints.sound(work, 0, 10))  # nor adopted, nor exported
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine" / "checkpoints").symlink_to(work.parent)
    assert writers.unsafe_above(tmp_path / "mine" / "checkpoints" / "run-1") == told


@as_root
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_runs_folder_that_belongs_to_another_user_is_refused(tmp_path: Path, level: int) -> None:
    """Who owns it could put another checkpoint there after it was looked at."""
    work = tmp_path / "results" / "checkpoints" / "run-1"
    writers.make_own(work)
    give_away(tmp_path)
    assert writers.unsafe_above(work, LEVELS) is None
    give_away(place := (work, *work.parents)[level])
    assert f"{place} belongs to another user (54321)" in (writers.unsafe_above(work, LEVELS) or "")


def test_what_lies_above_a_linked_folder_counts_and_a_sticky_file_is_no_sticky_folder(tmp_path: Path) -> None:
    (tmp_path / "open" / "code").mkdir(parents=True)
    writers.make_own(tmp_path / "results")
    (tmp_path / "results" / "code").symlink_to(tmp_path / "open" / "code")
    keep_others_out(tmp_path / "results")
    (tmp_path / "open").chmod(0o777)
    assert f"{tmp_path / 'open'} can be written by everyone" in refusal(keep_others_out, tmp_path / "results")
    (tmp_path / "open").chmod(0o1777)
    keep_others_out(tmp_path / "results")
    (file := tmp_path / "results" / "file").touch()
    file.chmod(0o1666)
    assert "can be written by everyone" in (writers.unsafe(file, folder=False) or "")


@as_root
def test_of_what_a_group_could_write_the_call_warns_once(
    tmp_path: Path, ranks: Ranks, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a project's folder on many clusters: its members are trusted then."""
    results = tmp_path / "results"
    work = results / "checkpoints" / "run-1"
    keep_others_out(results)
    writers.make_own(work)
    filled(Checkpoints(work, ranks), training, 4)
    assert capsys.readouterr().err == ""
    for path in (tmp_path, results, work):
        open_to_group(path)
    keep_others_out(results)
    told = f"{results} can be written by the members of group 54321, who could act as you; chmod -R g-w,o-w {results}"
    assert capsys.readouterr().err == f"warning: {told}, or trust them\n"
    assert Checkpoints(work, ranks).resume(training.strategy, 0, 10) == 4


@pytest.mark.usefixtures("open_umask")
def test_nothing_is_run_from_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    """A specification of a job names its interpreter."""
    keep_others_out(tmp_path / "results")
    write_json(tmp_path / "results" / "runs" / "a" / "run.json", {})
    assert all(path.stat().st_mode & 0o022 == 0 for path in (tmp_path / "results").rglob("*"))
    for name in ("code/0123", "runs/0123", "equivalence/gates/0123", "."):
        path = tmp_path / "results" / name
        path.mkdir(exist_ok=True, parents=True)
        path.chmod(0o777)
        assert f"{path} can be written by everyone; chmod o-w it" in refusal(keep_others_out, tmp_path / "results")
        path.chmod(0o755)


@as_root
def test_neither_the_program_nor_snakemakes_folder_is_left_to_others(tmp_path: Path, capsys) -> None:
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
    keep_others_out(results, sources)
    assert [path for path in made if path.stat().st_mode & 0o022] == []
    open_to_group(code)
    keep_others_out(results, sources)
    assert f"warning: {code} can be written by the members of group 54321" in capsys.readouterr().err
    open_to_all(code)
    assert f"{code} can be written by everyone" in refusal(keep_others_out, results, sources)
    code.chmod(0o644)
    for path in (state, results / "runs"):
        give_away(path)
        assert f"{path} belongs to another user (54321)" in refusal(keep_others_out, results, sources)
        os.chown(path, os.getuid(), -1)


def test_a_job_says_so_before_it_trains(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when the first checkpoint would be loaded, hours later."""
    chain = bench.chain("results")
    chain.results.chmod(0o777)
    monkeypatch.setattr(job, "launch", lambda *_: pytest.fail("it was started"))
    with pytest.raises(UserError, match=f"{chain.results} can be written by everyone"):
        job.run_segment(Places(chain.results, chain.run.id), 0, 60, 1)
