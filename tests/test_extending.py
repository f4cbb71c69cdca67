"""The table "to add" of docs/architecture.md: one place is changed, in a copy of the package, and the rest follows.

A strategy, a task, a site and the pages have their own: test_own_strategy_page, test_own_model_page, test_sites,
test_pages, test_docs_commands.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# By row: the file, the line before which something is added ('' for the end), what is added, what is then asked, and
# what it answers.
ADDED = {
    "a preflight check": (
        "preflight/checks_node.py",
        "",
        '@check("toys")\ndef toys(facts):\n    return note("a toy lies about", "put it away")\n',
        "from planned_preflights import recorded\nfrom relay.preflight.checks import check_all\n"
        "print(*(each.line for each in check_all(recorded()) if each.check == 'toys'))",
        ["toys: a toy lies about; put it away"],
    ),
    "a finding of the card": (
        "spec/card.py",
        "    experts: int = 0\n",
        "    toys: int = 7\n",
        "from relay.spec.looked import Looked\nfrom pathlib import Path\n"
        "Looked.read(Path('scripts/relay/tasks/cards/lenet-digits.json')).write(Path('card.json'))\n"
        "print(Looked.read(Path('card.json')).task.card.toys)",
        ["7"],
    ),
    "an axis": (
        "spec/setting.py",
        "    interop_threads: int = declare(\n",
        '    toys: int = declare(1, means="toys", label="{} toy|{} toys", bears_on="identity", axis=Axis(), ge=1)\n',
        "from relay.config.config import load\nfrom relay.comparison.columns import COMPARISON\n"
        "from relay.planning.planner import plan\nfrom relay.planning.table import setting_names\n"
        "def planned(*toys):\n"
        "    return plan(load({'device': 'cpu', 'comparisons': [{'strategy': 'cpu', 'toys': [*toys]}]}), cpus=1)\n"
        "made = planned(1, 2)\nprint(*setting_names(made).values())\n"
        "print(len({run.id for run in made.runs}) == 2 * len(planned(2).runs), 'toys' in COMPARISON)\n"
        "try:\n    planned(0)\nexcept Exception as error:\n    print(error)",
        [
            "cpu (1 proc, 1 thread, resident, 1 toy) cpu (1 proc, 1 thread, resident, 2 toys)",
            "True True",
            "config: comparisons[0].toys[0]: 0 is not allowed; allowed: a whole number of at least 1",
        ],
    ),
    "an axis (of the optimizer)": (
        "spec/setting.py",
        "    weight_decay: float | None = declare(\n",
        '    toys: int = declare(1, means="toys", label="{} toy|{} toys", bears_on="identity gate", axis=Axis())\n',
        "from relay.config.config import load\nfrom relay.planning.planner import plan\n"
        "made = plan(load({'device': 'cpu', 'comparisons': [{'strategy': 'cpu', 'toys': [1, 2]}]}), cpus=1)\n"
        "print(*(each.setting.optimization.toys for each in made.settings), len(made.gates))",
        ["1 2 2"],
    ),
    "a key of the config": (
        "config/config.py",
        "    right_size: bool = Field(\n",
        '    toys: Natural = Field(default=3, description="toys at hand")\n',
        "from relay.config.config import Config, load\nrows = {'comparisons': [{'strategy': 'cpu'}]}\n"
        "print(load(rows).toys, load(rows | {'toys': 5}).toys, Config.model_fields['toys'].description)\n"
        "try:\n    load(rows | {'toys': 'many'})\nexcept Exception as error:\n    print(error)",
        ["3 5 toys at hand", "config: toys: 'many' is not allowed; allowed: a whole number of at least 1"],
    ),
    "a measured column": (
        "comparison/columns.py",
        '    "measured_steps": Measured(int, "steps that were timed"),\n',
        '    "toys": Measured(float, "toys at hand", mean),\n',
        "from pathlib import Path\nfrom results_tree import Tree\ntree = Tree(Path())\n"
        "ids = tree.setting('cpu', [100.0, 101.0])\ntree.record(ids, toys=[1.0, 2.0])\nprint(tree.row('cpu')['toys'])",
        ["1.5"],
    ),
    "a warning with advice": (
        "comparison/advice.py",
        '    "look before you use it": apart_from_others,\n',
        "    'toys': lambda each: (each.row['strategy'], 'play'),\n",
        "from pathlib import Path\nfrom results_tree import Tree\nfrom relay.comparison import advice\n"
        "from relay.comparison.inputs import read_inputs\nfrom relay.comparison.measured import setting_results\n"
        "from relay.comparison.table import comparison_rows\n"
        "tree = Tree(Path())\ntree.setting('cpu', [100.0, 101.0])\n"
        "inputs = read_inputs(tree.write_plan(), tree.root, partial=False)\n"
        "print(advice.warnings(setting_results(inputs, comparison_rows(inputs)))[0].figure)",
        ["cpu"],
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "workflow", "envs"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.parametrize("what", ADDED)
def test_one_place_is_changed(copy: Path, what: str) -> None:
    file, before, line, asked, answers = ADDED[what]
    path = copy / "scripts/relay" / file
    text = path.read_text()
    assert f"| {what.partition(' (')[0]} | " in (ROOT / "docs/architecture.md").read_text()
    at = text.index(before) if before else len(text)
    path.write_text(text[:at] + line + text[at:])
    try:
        environment = os.environ | {"PYTHONPATH": f"{copy / 'scripts'}:{ROOT / 'tests/support'}"}
        ended = subprocess.run(
            [sys.executable, "-c", asked], cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(text)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[: len(answers)] == answers
