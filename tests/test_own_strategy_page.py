"""The page on writing a strategy: what it shows is taken out of it, and proven."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gate_runs import FEW_STEPS, Gates

ROOT = Path(__file__).resolve().parents[1]


def block(language: str) -> str:
    """The first block of code in that language."""
    found = re.search(rf"(?ms)^```{language}\n(.*?)^```", (ROOT / "docs/own-strategy.md").read_text())
    assert found is not None
    return found[1]


@pytest.mark.slow
def test_the_strategy_on_the_page_is_equivalent(gates: Gates, tmp_path: Path) -> None:
    (tmp_path / "my_ddp.py").write_text(block("python"))
    verdict = gates.verdict("my_ddp", 2, steps=FEW_STEPS, folders=[tmp_path])
    assert verdict["equivalent"], verdict["problems"]
