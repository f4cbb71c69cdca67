"""What a call for some strategies shows at its end: their speeds and proofs, without a comparison."""

from __future__ import annotations

import json
import re

from relay.comparison import alone
from results_tree import Tree

pytest_plugins = ["results_tree"]


def shown(tree: Tree, *strategies: str) -> list[str]:
    return [*alone.lines(json.loads(tree.write_plan().read_text()), tree.root, strategies)]


def test_each_setting_has_its_speed_and_whether_it_is_proven(full: Tree) -> None:
    *settings, _ = shown(full, "ddp")
    told = {line.partition("): ")[2] for line in settings}
    assert len(told) == 3
    assert "19,900 ±13 % images/s in 3 repeats; proven to train the same as one process" in told
    assert any(re.search("41,000 .* NOT proven: probably .*: algorithm: losses differ by 0.25", line) for line in told)
    assert any(line.startswith("failed: repeats 2 and 3: RuntimeError") for line in told), told
