"""Packages of the user's own, and a cluster's own wheels: looked for once, recorded, held, installed like others."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plans import CPU, ROOT, planned
from refusals import refusal
from relay.environments import login_node, node, overlay
from relay.environments.locks import lock_of, names_and_versions
from relay.planning import table
from relay.planning.plan import Plan
from relay.workflow import unready
from slurm_runs import site_in
from small_wheels import lock_entry, only, write_wheel

OWN = {"packages": {"torch": ["tiny-audio"]}}
NOWHERE = r"packages\.torch: pip has no wheels for nowhere: No matching distribution found for nowh"
TORCH = "2.13.0"  # the lock's


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip looks, and nowhere else: a package that needs the lock's torch, and what it needs beside. No torch."""
    folder = tmp_path / "index"
    write_wheel(folder, "tiny-audio", "1.0", f"torch=={TORCH}", "tiny-codec>=2", "numpy")
    write_wheel(folder, "tiny-codec", "2.1")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return only(folder, monkeypatch)


def recorded(found: Plan) -> tuple[str, Path]:
    (run,) = found.runs
    return run.stack, lock_of(ROOT, run.stack)


@pytest.mark.slow
def test_the_lock_has_the_stacks_own_versions_and_holds_while_the_list_is_the_same(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = planned(CPU, may="look", **OWN)
    assert "Looking for what stack torch needs for tiny-audio" in capsys.readouterr().err
    stack, lock = recorded(first)
    assert f"stack torch: as recorded in {lock}" in " ".join(table.render(first, width=200).split("\n"))
    assert "recorded" not in table.render(planned(CPU))
    assert re.fullmatch("torch-[0-9a-f]{12}", stack)
    own = {"tiny-audio==1.0", "tiny-codec==2.1"}
    assert {*names_and_versions(lock)} == {*names_and_versions(ROOT / "envs/torch.txt")} | own
    text = lock.read_text()
    assert all(lock_entry(wheel) in text for wheel in index.glob("*.whl"))
    assert str(index) not in text
    before = lock.stat()
    write_wheel(index, "tiny-codec", "3.0")
    monkeypatch.setenv("PATH", "")  # no pip is started
    again = planned(CPU, may="look", **OWN)
    assert [run.id for run in again.runs] == [run.id for run in first.runs]
    assert lock.stat() == before
    assert capsys.readouterr().err == ""
    assert [run.id for run in planned(CPU, **OWN).runs] == [run.id for run in first.runs]


@pytest.mark.parametrize(
    ("packages", "told"),
    [
        ({"torch": ["a", "-r x"]}, r"packages\.torch\[1\]: '-r x' is not allowed; allowed: a package"),
        ({"torch": ["torch==2.9.0"]}, rf"'torch==2\.9\.0' is not allowed: the stack's lock has torch {TORCH}"),
        pytest.param({"torch": ["nowhere"]}, NOWHERE, marks=pytest.mark.slow),
    ],
)
def test_a_bad_list_is_one_line(index: Path, packages: Any, told: str) -> None:
    assert re.match(f"config: .*{told}", refusal(planned, CPU, may="look", packages=packages))
    assert not Path("results").exists()


# Installed


@pytest.mark.slow
def test_here_it_is_an_environment_above_the_drivers(index: Path, tmp_path: Path) -> None:
    stack, lock = recorded(planned(CPU, may="look", **OWN))
    asked = login_node.environment_of(None, stack, ROOT)
    record = login_node.prepare(asked, lock)
    assert record["differs"] == []
    assert record["installed"]["tiny-codec"] == "2.1"
    (python,) = node.interpreter(asked, tmp_path)
    ask = "import tiny_audio, tiny_codec, importlib.metadata as m; print(tiny_audio.__version__, m.version('torch'))"
    done = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    assert done.stdout.split()[0] == "1.0"
    assert done.stdout.split()[1].startswith(TORCH)
    assert overlay.place(lock) != overlay.place(ROOT / "envs/torch.txt")


# A cluster's own wheels: what its folder offers when a comparison is planned first is recorded, and holds then.


OFFERED = {"torch": ["torch", "psutil"], "lightning": ["torch", "pytorch-lightning"]}


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster's folder of wheels, with versions of its own. pip knows it by its configuration."""
    folder = tmp_path / "wheelhouse"
    for name, version in (("torch", "2.6.0+site"), ("psutil", "7.0+site"), ("filelock", "3.1+site")):
        write_wheel(folder, name, version, *(["filelock"] if name == "torch" else []))
    for name, version in (("2.5.1", "<2.6"), ("2.5.2", "")):
        write_wheel(folder, "pytorch-lightning", name, f"torch{version}")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return only(folder, monkeypatch)


def planned_in(folder: Path) -> Plan:
    environment = {"mode": "wheels", "wheels_from": "site", "packages": OFFERED, "python": sys.executable}
    return planned(CPU, site=site_in(folder, environment=environment), may="look")


@pytest.mark.slow
def test_what_is_offered_is_recorded_and_shown(offered: Path, tmp_path: Path) -> None:
    found = planned_in(tmp_path)
    assert unready.unready(found) == []
    job = found.job(found.runs[0])
    assert job.environment["packages"] == ["filelock===3.1+site", "psutil===7.0+site", "torch===2.6.0+site"]
    lock = lock_of(ROOT, found.runs[0].stack)
    shown = " ".join(table.render(found, width=200).split("\n"))
    assert f"stack torch: torch 2.6.0+site, as recorded in {lock}" in shown


@pytest.mark.slow
def test_a_recorded_wheel_that_is_gone_is_told_before_anything_is_submitted(offered: Path, tmp_path: Path) -> None:
    planned_in(tmp_path)
    write_wheel(offered, "torch", "2.7.0+site", "filelock")
    (offered / "torch-2.6.0+site-py3-none-any.whl").unlink()
    (line,) = unready.unready(planned_in(tmp_path))
    assert "torch 2.6.0+site (torch-2.6.0+site-py3-none-any.whl) is no more in" in line
    assert "delete this lock to begin again" in line
