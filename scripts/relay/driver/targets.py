"""The targets of a call: misspelt ones are named before Snakemake builds its graph of jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from relay.spec.messages import show, unknown

ADD = "to add it, write `- strategy: {}` below `comparisons:` in your config (docs/strategies.md has its options)"


def unknown_targets(workflow: Any, strategies: Collection[str] = ()) -> Iterator[str]:
    """A line for each target that is neither a rule, nor a file that a rule makes, nor a file that is there.

    `workflow` is Snakemake's. Named are the rules that can be targets, which are those without wildcards: another one
    makes many files, and does not say which. `strategies`: all that there are, also those that the config does not
    compare, which are no rules.
    """
    rules = list(workflow.rules)
    allowed = [rule.name for rule in rules if not rule.has_wildcards()]
    for target in map(str, workflow.dag_settings.targets):
        if workflow.is_rule(target) and target not in allowed:
            yield unknown(f"target {show(target)} makes one file of many, and is no target", target, allowed)
            continue
        if target in strategies and not workflow.is_rule(target):
            yield f"target {show(target)}: the config does not compare this strategy; {ADD.format(target)}"
            continue
        made = workflow.is_rule(target) or any(rule.is_producer(target) for rule in rules)
        if not made and not Path(target).exists():
            yield unknown(f"target {show(target)} is unknown", target, allowed) + ", or a file that one of them makes"
