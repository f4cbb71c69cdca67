"""Installing what the Slurm tests need, and saying so aloud where that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import debian_packages
from debian_packages import POLICY, REFUSAL
from slurm_packages import obstacle, require


def policy() -> str | None:
    return POLICY.read_text() if POLICY.exists() else None


def test_what_is_there_is_not_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    monkeypatch.setattr(debian_packages, "_install", lambda packages: f"asked for {packages}")
    assert obstacle({"sh": "dash"}) == ""
    assert obstacle({"sh": "dash", "no-such-command": "a-package"}).endswith("asked for ['a-package']")


def test_without_root_the_tests_are_skipped_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.warns(pytest.PytestWarning, match="the Slurm tests were NOT run: a virtual cluster needs root"),
        pytest.raises(pytest.skip.Exception, match="NOT run"),
    ):
        require()


def test_without_apt_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "slurmctld, slurmd, slurm-client, munge, iproute2 not installed" in obstacle()


@pytest.mark.slow
def test_a_failed_installation_is_told_and_daemons_may_start_again() -> None:
    if os.geteuid():
        pytest.skip("needs root")
    before = policy()
    assert "Unable to locate package torch-relay-no-such" in obstacle({"no-such-command": "torch-relay-no-such"})
    assert policy() == (None if before == REFUSAL else before)


def test_a_header_is_looked_for_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian_packages, "_install", lambda packages: f"asked for {packages}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    header = tmp_path / "a.h"
    assert debian_packages.obstacle({str(header): "a-dev"}).endswith("asked for ['a-dev']")
    header.touch()
    assert debian_packages.obstacle({str(header): "a-dev"}) == ""


def test_without_a_compiler_the_tests_that_build_are_skipped_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.warns(pytest.PytestWarning, match="NOT run: a-compiler not installed, and only root installs packages"),
        pytest.raises(pytest.skip.Exception, match="NOT run"),
    ):
        debian_packages.require({"no-such-compiler": "a-compiler"})
