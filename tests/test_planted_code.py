"""Code that lies where Python would find it before the frozen code, or before a library, reaches no job."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain_runs import Bench
from relay.run_folder.snapshot import COMMIT, changed_since, freeze

pytest_plugins = ["chain_runs"]

PLANTED = "raise SystemExit('planted code was imported')\n"


@pytest.mark.parametrize("name", ["sitecustomize.py", "torch.py", "numpy", "usercustomize.so"])
def test_what_lies_beside_the_frozen_package_is_a_changed_snapshot(tmp_path: Path, name: str) -> None:
    """Python would import it: `sitecustomize` at every start, the others in the place of libraries."""
    frozen = freeze(None, tmp_path)
    (frozen / ".nfs0001").touch()  # an open file that was removed, on NFS
    (frozen / COMMIT).touch()
    assert changed_since(frozen) is None
    if "." in name:
        (frozen / name).write_text(PLANTED)
    else:
        (frozen / name).mkdir()
    assert changed_since(frozen) == f"was changed: {name} was not in it when it was made"
    assert freeze(None, tmp_path) == frozen
    assert changed_since(frozen) is None


def test_a_job_imports_nothing_from_the_folder_in_which_it_was_started(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "sympy", "relay"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    ended = bench.chain("results", total_steps=2).segment()
    assert (ended.status, "planted" in ended.errors) == (0, False), ended.errors
