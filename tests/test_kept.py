"""The one cache of what takes long to build: whole or absent, whatever happens to a build and whoever builds beside."""

import errno
import os
import re
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from refusals import refusal
from relay.base.errors import UserError
from relay.chain import files
from relay.environments import kept, node
from relay.environments.kept import Build

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    return tmp_path / "cache" / "torch-relay" / "built"


def wheel(build: Build, text: str = "compiled") -> Path:
    (build.folder / "thing.whl").write_text(text)
    return build.folder / "thing.whl"


def test_it_is_built_once_for_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept.kept("thing", ["torch 2.13", kept.compilers()], "thing 1.0", wheel)
    assert first.read_text() == "compiled"
    again = kept.kept("thing", ["torch 2.13", kept.compilers()], "thing 1.0", lambda build: wheel(build, "again"))
    assert (again, again.read_text()) == (first, "compiled")
    assert kept.kept("thing", ["torch 2.14", kept.compilers()], "thing 1.0", wheel) != first
    monkeypatch.setenv("CXXFLAGS", "-O0")  # the user's flags reach the compiler
    assert kept.kept("thing", ["torch 2.13", kept.compilers()], "thing 1.0", wheel) != first


KILLED = """
import os, signal
from relay.environments.kept import kept
kept("thing", [], "thing 1.0", lambda build: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_build_that_is_killed_leaves_nothing_that_is_used(cache: Path) -> None:
    words = [sys.executable, "-c", KILLED]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, capture_output=True)
    assert done.returncode == -9, done.stderr
    assert kept.kept("thing", [], "thing 1.0", wheel).read_text() == "compiled"


def test_of_two_builds_on_a_disk_without_locks_the_first_counts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    both = threading.Barrier(2)

    def together(build: Build) -> Path:
        both.wait(timeout=60)
        return wheel(build)

    with ThreadPoolExecutor() as pool:
        made = [pool.submit(kept.kept, "thing", [], "thing 1.0", together) for _ in range(2)]
        first, second = (each.result() for each in made)
    assert first == second
    assert first.read_text() == "compiled"
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []


def test_what_a_cleaner_has_deleted_by_age_is_built_again() -> None:
    """It leaves the folders."""
    kept.kept("thing", [], "thing 1.0", wheel).unlink()
    assert kept.kept("thing", [], "thing 1.0", wheel).read_text() == "compiled"


def test_what_nodes_share_is_used_where_it_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept.kept("thing", [], "thing 1.0", wheel)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "node"))
    monkeypatch.setattr(kept.os, "access", lambda *_: False)
    assert kept.kept("thing", [], "thing 1.0", lambda build: wheel(build, "again")) == made
    assert kept.kept("other", [], "other 1.0", wheel).parents[1] == tmp_path / "node"


def test_a_full_disk_is_named_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "thing.o")))
    with pytest.raises(UserError, match=r"thing\.o: cannot be used: No space left.* name another folder in TMPDIR"):
        kept.kept("thing", [], "thing 1.0", full)
    with monkeypatch.context() as disk:
        disk.setattr(kept.shutil, "copy2", full)
        assert re.search(r"No space left.* disk in XDG_CACHE_HOME", refusal(kept.kept, "thing", [], "thing 1.0", wheel))
    assert kept.kept("thing", [], "thing 1.0", wheel).read_text() == "compiled"


def test_a_cache_in_which_others_can_write_is_refused(cache: Path) -> None:
    """What lies there would be run."""
    made = kept.kept("thing", [], "thing 1.0", wheel)
    cache.chmod(0o777)
    with pytest.raises(UserError, match=r"built can be written by everyone; .* in XDG_CACHE_HOME"):
        kept.kept("thing", [], "thing 1.0", wheel)
    cache.chmod(0o755)
    assert kept.kept("thing", [], "thing 1.0", wheel) == made


def test_a_build_works_where_tmp_is_noexec(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CMake and packages run what they have just compiled, and /tmp may be mounted noexec."""
    (disk := tmp_path / "disk").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    monkeypatch.setattr(kept, "noexec", lambda folder: folder == disk)
    folders = list[Path]()
    kept.kept("thing", [], "thing 1.0", lambda build: folders.append(build.folder) or wheel(build))
    assert folders[0].parent == cache.parent
    assert not folders[0].exists()
    monkeypatch.setattr(node, "noexec", lambda folder: folder == disk)
    asked = {"mode": "wheels", "site_wheels": True}
    with pytest.raises(UserError, match=r"node_disk: .*/disk on node \S+ is mounted noexec.*; name another folder in"):
        node.prepare(asked, disk)


def test_compilers_are_asked_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that tells an error is found by its words."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")

    compiler = 'case "$LC_ALL" in C) echo "a.c:1: error: no type";; *) echo Fehler;; esac; echo 2; exit 1'
    with pytest.raises(UserError, match=r"thing 1\.0 could not be built on node \S+: a\.c:1: error: no type; all that"):
        kept.kept("thing", [], "thing 1.0", lambda build: build.run(["sh", "-c", compiler]))


@pytest.mark.usefixtures("open_umask")
def test_an_open_umask_opens_no_cache(cache: Path) -> None:
    made = kept.kept("thing", [], "thing 1.0", wheel)
    for path in (made, made.parent, *made.parents[1:4]):
        assert not path.stat().st_mode & 0o022, path
