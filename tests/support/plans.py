"""Plans of comparisons on this machine, and strategies and a project that the planner reads."""

from pathlib import Path
from typing import Any

from relay.config.config import Config, load
from relay.planning.inputs import Here
from relay.planning.plan import RESULTS, Plan
from relay.planning.planner import May, make_plan
from relay.spec.arithmetic import Arithmetic
from relay.spec.run import Run
from relay.spec.site import Site

ROOT = Path(__file__).resolve().parents[2]
STRATEGY = '''"""A strategy of a test's own, which is right: each process has the whole batch."""

import os
from contextlib import contextmanager
from pathlib import Path

from relay.strategies.base import Requirements, Strategy


class Own(Strategy):
    """Docstring."""

    requirements = Requirements({requirements})

    def build(self, **options) -> None:
        self.build_whole()  # as the reference
{more}
'''


def strategy_folder(folder: Path, name: str, requirements: str, more: str = "") -> str:
    """Writes a strategy's file, with `more` (indented) in its class; returns its folder for the config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(STRATEGY.format(requirements=requirements, more=more))
    return str(folder)


def plan(config: Config, *, root: Path = ROOT, results: Path = RESULTS, may: May = "nothing", **here: Any) -> Plan:
    """The plan of a config; `here` are the options of `Here.of`."""
    return make_plan(config, Here.of(config, **here), root=root, results=results, may=may)


def planned(
    *comparisons: dict[str, Any],
    gpus: int = 0,
    cpus: int = 64,
    root: Path = ROOT,
    results: Path = Path("none"),
    site: Site | None = None,
    may: May = "nothing",
    arithmetic: Arithmetic | None = None,
    **keys: Any,
) -> Plan:
    """The plan of these comparisons, one repeat unless said otherwise; `site` and the like are those of `Here`."""
    config = load({"repeats": 1, "comparisons": list(comparisons), **keys})
    here: dict[str, Any] = {"site": site, "arithmetic": arithmetic, "gpus": gpus, "cpus": cpus}
    return plan(config, root=root, results=results, may=may, **here)


def only(*comparisons: dict[str, Any], **keys: Any) -> Run:
    """The only run of a plan."""
    (run,) = planned(*comparisons, **keys).runs
    return run


def reasons(*comparisons: dict[str, Any], **keys: Any) -> list[str]:
    """Why everything in this plan is skipped."""
    found = planned(*comparisons, **keys)
    assert found.runs == []
    return ["; ".join(skipped.reasons) for skipped in found.skipped]


CPU = {"strategy": "cpu"}
DDP = {"strategy": "ddp", "devices_per_node": 2}


def edit(path: Path, old: str, new: str) -> None:
    """Replaces the first of these words in a file, which must hold them."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
