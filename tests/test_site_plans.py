"""Every strategy is planned on every ready site, and the page about that is in step."""

from __future__ import annotations

import re

import pytest
import yaml

import site_plans
from relay.spec import requirements
from relay.spec.site import names


@pytest.mark.slow
def test_the_page_is_in_step_with_sites_and_planner() -> None:
    text = (site_plans.ROOT / site_plans.PAGE).read_text()
    for name in ("arc", "trillium-gpu"):  # all of them take half a minute
        assert site_plans.row(name) in text, "run `python scripts/site_plans.py`"
    planned = {name: int(count) for name, count in re.findall(r"(?m)^\| `([a-z0-9-]+)` \| (\d+) \|", text)}
    assert sorted(planned) == names(site_plans.ROOT)
    assert min(planned.values()) > 10


def test_every_strategy_of_every_stack_is_asked_for() -> None:
    configs = [yaml.safe_load((site_plans.ROOT / config).read_text()) for config in site_plans.CONFIGS]
    asked = {comparison["strategy"] for config in configs for comparison in config["comparisons"]}
    assert asked == set(requirements.find())
