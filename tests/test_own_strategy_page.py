"""The page on writing a strategy: what it shows is taken out of it, and proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate_runs import FEW_STEPS, Gates
from pages import blocks


@pytest.mark.slow
def test_the_strategy_on_the_page_is_equivalent(gates: Gates, tmp_path: Path) -> None:
    code, *_ = [block.text for block in blocks("docs/own-strategy.md") if block.language == "python"]
    (tmp_path / "my_ddp.py").write_text(code)
    verdict = gates.verdict("my_ddp", 2, steps=FEW_STEPS, folders=[tmp_path])
    assert verdict["equivalent"], verdict["problems"]
