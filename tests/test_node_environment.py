"""The Python that a job finds on its node: wheels fetched whole, and installed by real uv and pip without network."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from living import LONGEST_SECONDS, until
from relay.base.errors import UserError
from relay.base.files import sha256
from relay.chain.files import LOCK, HeldError, exclusive
from relay.environments import login_node, node, versioned, wheelhouse
from tiny_stack import FETCH, PREPARE, ROOT, fetched, needs_root, offline, prepared, project, python, told

pytest_plugins = ["tiny_stack"]


@pytest.mark.slow
def test_prepare_needs_no_network_and_is_done_once(tmp_path: Path, tiny: Path) -> None:
    needs_root()
    said, interpreter = prepared(told(tiny), tmp_path, before=("unshare", "--net"))
    assert re.fullmatch(r"environment: \S+ made in [0-9.]+ s", said)
    assert Path(interpreter).is_relative_to(tmp_path / f"relay-{os.getuid()}")
    ask = "import markupsafe, sys; print(markupsafe.__file__, sys.prefix)"
    where = subprocess.run([interpreter, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
    assert all(Path(path).is_relative_to(Path(interpreter).parents[1]) for path in where)
    assert prepared(told(tiny), tmp_path) == (f"environment: {Path(interpreter).parents[1]} is there", interpreter)
    # uv's cache, and all else that was needed on the way, is gone.
    folder = Path(interpreter).parents[1].name
    link = folder.rsplit(".", 1)[0]
    left = sorted(os.listdir(tmp_path / f"relay-{os.getuid()}"))  # noqa: PTH208
    assert left == sorted([link, folder, f"{link}.held"])


@pytest.mark.slow
def test_jobs_that_share_a_node_build_once(tmp_path: Path, tiny: Path) -> None:
    command = python(PREPARE, json.dumps(told(tiny)), tmp_path)
    jobs = [subprocess.Popen(**command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [job.communicate(timeout=LONGEST_SECONDS)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    assert sum(" made in " in text for text in said) == 1
    assert sum(" is there" in text for text in said) == 2
    assert len({text.splitlines()[-1] for text in said}) == 1


# As `relay.launch.step` does: it becomes the job's Python, which imports again when it is told to.
RUN = """
import json, os, sys; from pathlib import Path; from relay.environments import node as n
told, disk, program = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
python = n.interpreter(told, disk)
os.execv(python[0], [*python, "-c", program])
"""
LATE = "print('runs', flush=True); input(); import markupsafe._speedups, sys; print(sys.prefix)"


@pytest.mark.slow
def test_a_running_job_keeps_its_files_when_its_environment_is_made_anew(tmp_path: Path, tiny: Path) -> None:
    _, interpreter = prepared(told(tiny), tmp_path)
    folder = Path(interpreter).parents[1]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(**python(RUN, json.dumps(told(tiny)), tmp_path, LATE), **pipes) as job:
        try:
            assert job.stdout.readline() == "runs\n"
            with pytest.raises(HeldError):  # a file's lock, which NFS tells to other nodes
                exclusive(folder, 0)
            next(folder.glob("lib/python3*/site-packages/typing_extensions.py")).unlink()
            said, another = prepared(told(tiny), tmp_path)
            assert "is incomplete; it is installed again" in said
            assert Path(another).parents[1] != folder
            subprocess.run([another, "-c", "import typing_extensions, markupsafe"], check=True)
            assert prepared(told(tiny), tmp_path) == (f"environment: {Path(another).parents[1]} is there", another)
            printed, _ = job.communicate("\n", timeout=LONGEST_SECONDS)
            assert (job.returncode, printed) == (0, f"{folder}\n")
        finally:
            job.kill()
    prepared(told(tiny), tmp_path)
    assert list(tmp_path.glob("relay-*/*.[0-9]*")) == [Path(another).parents[1]]


def test_a_version_that_is_being_removed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock may be removed before its other files: who opens it then has a new one, which nobody holds."""
    version, link, pythons = tmp_path / "torch.1", tmp_path / "torch", []
    version.mkdir()
    (version / versioned.MARKER).touch()
    versioned.point(link, version)

    def rmtree(folder: Path, **_: Any) -> None:
        (folder / LOCK).unlink()
        pythons.append(versioned.interpreter(link))

    monkeypatch.setattr(versioned.shutil, "rmtree", rmtree)
    versioned.clear(link, but=None)
    assert pythons == [None, None]


@pytest.mark.slow
def test_a_wheel_that_was_damaged_or_exchanged_on_the_way_is_refused(tmp_path: Path, tiny: Path) -> None:
    copy = shutil.copytree(tiny, tmp_path / "copy")
    wheel, sums = next(copy.glob("typing*.whl")), copy / "SHA256SUMS"
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"typing_extensions-\S+whl: missing or damaged; have it fetched"):
        prepared(told(copy), tmp_path)
    assert list(tmp_path.glob("relay-*/*.[0-9]*")) == []  # what could not be finished takes no room
    wheel.write_bytes(whole)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("evil.py", "")
    sums.write_text(re.sub(rf"\w+(?=  {re.escape(wheel.name)})", sha256(wheel), sums.read_text()))
    with pytest.raises(UserError, match=r"could not be made on node .*Hash mismatch for .typing-extensions"):
        prepared(told(copy), tmp_path)


@pytest.mark.slow
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, tiny: Path) -> None:
    needs_root()
    own = tmp_path / f"relay-{os.getuid()}"
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is not a folder that only you can write to"):
        prepared(told(tiny), tmp_path)
    own.unlink()
    own.mkdir()
    for spoil, remedy in (
        (lambda: os.chown(own, 65534, -1), "another user made it: name another folder as `node_disk`"),
        (lambda: (os.chown(own, 0, -1), own.chmod(0o777)), "remove it"),
    ):
        spoil()
        with pytest.raises(UserError, match=f"is not a folder that only you can write to: {remedy}"):
            prepared(told(tiny), tmp_path)


# What other modes run with


def test_a_container_gets_the_folders_and_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "torch.sif"
    asked = {"mode": "apptainer", "modules": [], "image": str(image), "nvidia": True}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="neither apptainer nor singularity is on the PATH"):
        node.interpreter(asked, Path("/tmp"))
    apptainer = str(tmp_path / "apptainer")
    Path(apptainer).touch(0o755)
    with pytest.raises(UserError, match=r"environment\.image: .*torch\.sif' is not there on node"):
        node.interpreter(asked, Path("/tmp"))
    image.touch()
    binds = ["--bind", str(tmp_path), "--bind", str(ROOT), "--bind", "/tmp"]
    rest = [*binds, "--pwd", str(tmp_path), str(image), "python3"]
    assert node.interpreter(asked, Path("/tmp")) == [apptainer, "exec", "--nv", *rest]
    assert node.interpreter(asked | {"nvidia": False}, Path("/tmp")) == [apptainer, "exec", *rest]
    with pytest.raises(UserError, match="cannot bind a folder with ':' or ','"):
        node.interpreter(asked, Path("/tmp/a:b"))


# Wheels for nodes without network: fetched by real pip, complete or absent, every hash checked.


@pytest.mark.slow
def test_only_what_is_damaged_is_fetched_anew_and_no_stray_wheel_taken_up(tmp_path: Path, tiny: Path) -> None:
    mine = project(tmp_path / "project")
    place = fetched(mine, tmp_path, **offline(tiny))
    bad, good = sorted(place.glob("*.whl"))
    kept = good.stat().st_ino
    bad.write_bytes(bad.read_bytes()[:-1] + b"x")
    (place / "evil-1.0-py3-none-any.whl").write_bytes(b"evil")
    assert len(wheelhouse.damaged(place) or ()) == 1
    fetched(mine, tmp_path, **offline(tiny))
    assert wheelhouse.damaged(place) == []
    assert good.stat().st_ino == kept
    assert "evil" not in (place / "requirements.txt").read_text() + (place / "SHA256SUMS").read_text()


def test_wheels_are_kept_on_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse.os, "link", Mock(side_effect=PermissionError(errno.EPERM, "not permitted")))
    (place := tmp_path / "place").mkdir()
    (partial := tmp_path / "partial").mkdir()
    (place / "a-1-py3-none-any.whl").write_bytes(b"wheel")
    (place / wheelhouse.SUMS).write_text(f"{sha256(place / 'a-1-py3-none-any.whl')}  a-1-py3-none-any.whl\n")
    wheelhouse._keep_good(SimpleNamespace(built=[]), place, partial, [])
    assert (partial / "a-1-py3-none-any.whl").read_bytes() == b"wheel"
    assert login_node.lost(told(place) | {"overlay": None}) == ""
    (place / "a-1-py3-none-any.whl").unlink()  # as from a scratch disk: the next call fetches it again
    assert "files are gone from" in login_node.lost(told(place) | {"overlay": None})


@pytest.mark.slow
def test_another_hash_than_the_locks_leaves_nothing(tmp_path: Path) -> None:
    mine = project(tmp_path / "project", spoil=True)
    with pytest.raises(UserError, match="could not be fetched: THESE PACKAGES DO NOT MATCH THE HASHES"):
        fetched(mine, tmp_path)
    assert os.listdir(tmp_path / wheelhouse.FOLDER) == ["fetching.held"]  # noqa: PTH208


@pytest.mark.slow
def test_a_fetch_that_is_killed_leaves_no_wheelhouse(tmp_path: Path, tiny: Path) -> None:
    mine = project(tmp_path / "project")
    command = python(FETCH, mine)
    child = subprocess.Popen(**command, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        until(lambda: any((tmp_path / wheelhouse.FOLDER).glob(".tiny-*.partial")), "a part is there")
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert not list((tmp_path / wheelhouse.FOLDER).glob("tiny-*"))
    command["env"] |= offline(tiny)
    both = [subprocess.Popen(**command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = "".join(each.communicate(timeout=LONGEST_SECONDS)[0] for each in both)
    assert (printed.count("Fetching the wheels"), printed.count("is up to date")) == (1, 1)  # one waits for the other
    (place,) = (tmp_path / wheelhouse.FOLDER).glob("tiny-*")
    assert wheelhouse.damaged(place) == []
    assert not list((tmp_path / wheelhouse.FOLDER).glob(".tiny-*"))


def test_the_build_of_torch_decides_what_is_asked_for() -> None:
    cpu, cuda = (wheelhouse.order(ROOT, "torch", build) for build in ("cpu", "cuda"))
    assert re.findall(r"(?m)^torch\S+", cpu.requirements(["torch"])) == ["torch===2.13.0+cpu", "torchvision===0.28.0"]
    assert re.findall(r"(?m)^torch\S+", cuda.requirements(())) == ["torch===2.13.0", "torchvision===0.28.0"]
    assert "nvidia-nccl" in cuda.requirements(())
    assert "nvidia-nccl" not in cpu.requirements(())
    assert cpu.folder != cuda.folder
    with pytest.raises(UserError, match=r"'cu118' has no locked wheels; allowed: cpu, cuda"):
        wheelhouse.order(ROOT, "torch", "cu118")
    with pytest.raises(UserError, match=r"stack 'nothing': the lock .*nothing.txt is missing"):
        wheelhouse.order(ROOT, "nothing", "cpu")
