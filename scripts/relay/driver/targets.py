"""The targets of a call: misspelt ones are named before Snakemake builds its graph of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relay.spec.messages import show, unknown


def unknown_targets(workflow: Any) -> Iterator[str]:
    """A line for each target that is neither a rule, nor a file that a rule makes, nor a file that is there.

    `workflow` is Snakemake's. Named are the rules that can be targets, which are those without wildcards: another one
    makes many files, and does not say which.
    """
    rules = list(workflow.rules)
    allowed = [rule.name for rule in rules if not rule.has_wildcards()]
    for target in map(str, workflow.dag_settings.targets):
        if workflow.is_rule(target) and target not in allowed:
            yield unknown(f"target {show(target)} makes one file of many, and is no target", target, allowed)
            continue
        made = workflow.is_rule(target) or any(rule.is_producer(target) for rule in rules)
        if not made and not Path(target).exists():
            yield unknown(f"target {show(target)} is unknown", target, allowed) + ", or a file that one of them makes"
