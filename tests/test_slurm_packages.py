"""Installing what the Slurm tests need, and saying so aloud where that cannot be."""

from __future__ import annotations

import os

import pytest

from slurm_packages import require


def test_without_root_the_tests_are_skipped_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.warns(pytest.PytestWarning, match="the Slurm tests were NOT run: a virtual cluster needs root"),
        pytest.raises(pytest.skip.Exception, match="NOT run"),
    ):
        require()
