"""Files of a user that have the name of a library are in no job's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain_runs import Bench

pytest_plugins = ["chain_runs"]

OWN = "raise SystemExit('the user's own file was imported')\n"


@pytest.mark.slow
def test_a_job_imports_nothing_from_the_folder_in_which_it_was_started(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "sympy", "relay"):
        (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    ended = bench.chain("results", total_steps=2).segment()
    assert (ended.status, "the user's own" in ended.errors) == (0, False), ended.errors
