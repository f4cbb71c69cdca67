"""Plans every strategy on every ready site, and writes what is skipped there, and why: docs/site-plans.md."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from relay.config.config import load
from relay.planning.inputs import Here
from relay.planning.plan import Plan
from relay.planning.planner import make_plan
from relay.spec.site import load_site, names

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/site-plans.md"
# Together they ask for every strategy, of all stacks.
CONFIGS = tuple(f"config/proof/{name}.yaml" for name in ("strategies", "experts", "lightning", "horovod", "deepspeed"))
HEAD = """\
# Every strategy on every ready site

<!-- `python scripts/site_plans.py` writes this page. Change the sites or the planner, not this page. -->

What the planner makes of five configs in `config/proof` (`strategies`, `experts`, `lightning`, `horovod`, `deepspeed`),
which ask for every strategy of every stack on one node, on each of the [ready sites](sites.md#the-ready-ones). On a
site with GPUs all strategies that can use them do. The numbers behind a skipped strategy are its devices on each node.

A stack is skipped where the site's file says nothing of it. Where its packages come from conda, add the name of an
environment, or a file that creates one, under `environment.conda`.

"""


def plans(name: str) -> Iterator[Plan]:
    """The plan of each config on a site. Speeds that were measured here are no part of it."""
    site = load_site(name, ROOT)
    for file in CONFIGS:
        given = yaml.safe_load((ROOT / file).read_text(encoding="utf-8")) | {"repeats": 1}
        config = load(given)
        yield make_plan(config, Here.of(config, site), root=ROOT, results=Path("/nonexistent"))


def row(name: str) -> str:
    """A site's line in the table."""
    site_plans = list(plans(name))
    planned = sum(len(each.settings) for each in site_plans)
    reasons: dict[str, dict[str, set[int]]] = {}
    for skipped in (skipped for each in site_plans for skipped in each.skipped):
        strategy, shape = skipped.setting.strategy.name, skipped.setting.shape
        for reason in skipped.reasons:
            words = reason.removeprefix(f"{strategy} ").removeprefix(f"config/sites/{name}.yaml: ")
            reasons.setdefault(words, {}).setdefault(strategy, set()).add(shape.devices_per_node)
    lines = [f"{_strategies(named)}: {words}" for words, named in sorted(reasons.items())]
    return f"| `{name}` | {planned} | {'<br>'.join(lines) or 'nothing'} |"


def _strategies(named: dict[str, set[int]]) -> str:
    return ", ".join(f"`{name}` {' and '.join(map(str, sorted(sizes)))}" for name, sizes in sorted(named.items()))


def page() -> str:
    """The whole page."""
    lines = ["| site | settings that run | skipped, and why |", "| --- | --- | --- |", *map(row, names(ROOT))]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
