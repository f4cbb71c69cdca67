"""The targets of a call: what cannot be made is named before Snakemake builds its graph of jobs."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from relay.run_folder import replaced
from relay.spec.messages import near, show, unknown

LISTS = "`snakemake --list`"
ADD = "to add it, write `- strategy: {}` below `comparisons:` in your config (docs/strategies.md has its options)"
# Options of Snakemake that name rules or files, as its settings call them.
OPTIONS = {"--forcerun": "forcerun", "--until": "until", "--omit-from": "omit_from"}


def unknown_targets(workflow: Any, names: Mapping[str, Collection[str]]) -> Iterator[str]:
    """A line for each target that is neither a rule nor a file that a rule makes.

    `workflow` is Snakemake's. Named are the rules that can be targets, which are those without wildcards: another one
    makes many files, and does not say which. `names` has the names of what the config plans by the wildcard that
    stands for them, such as `run`; and under `strategy` all strategies that there are.
    """
    rules = list(workflow.rules)
    allowed = [rule.name for rule in rules if not rule.has_wildcards()]
    for target in map(str, workflow.dag_settings.targets):
        if workflow.is_rule(target) and target not in allowed:
            yield unknown(f"target {show(target)} makes one file of many, and is no target", target, allowed, LISTS)
        elif not workflow.is_rule(target):
            yield from _of_no_rule(target, rules, allowed, names)
    for option, name in OPTIONS.items():
        for target in map(str, getattr(workflow.dag_settings, name, None) or ()):
            if workflow.is_rule(target):
                continue
            if not any(rule.is_producer(target) for rule in rules):
                yield unknown(f"{option}: {show(target)} is unknown", target, [rule.name for rule in rules], LISTS)
            elif option == "--forcerun":  # what follows from the file may be finished, and would not be made again
                anew = replaced.how_anew("RUN")
                yield f"{option}: {show(target)} is a file; allowed: rules. `{anew}` lets a run start anew"


def _of_no_rule(
    target: str, rules: Collection[Any], allowed: Collection[str], names: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """What is wrong with a target that is no rule; nothing for a file that can be made."""
    making = [rule for rule in rules if rule.is_producer(target)]
    if making:
        unplanned = [_unplanned(rule, target, names) for rule in making]
        if all(unplanned):
            yield f"target {show(target)}: {unplanned[0]}"
    elif target in names["strategy"]:
        yield f"target {show(target)}: the config does not compare this strategy; {ADD.format(target)}"
    elif Path(target).suffix in (".yaml", ".yml", ".json") and Path(target).is_file():
        yield f"target {show(target)} is a file that no rule makes; a config is given by --configfile {target}"
    elif "=" in target:
        yield f"target {show(target)} is unknown; a value for the config is given by --config {target}"
    else:
        why = unknown(f"target {show(target)} is unknown", target, allowed, LISTS)
        yield f"{why}, or a file that one of them makes"


def _unplanned(rule: Any, target: str, names: Mapping[str, Collection[str]]) -> str:
    """What of a file's name the config does not plan; '' where it plans all of it."""
    matches = filter(None, (product.match(target) for product in rule.products()))
    for name, value in next(matches).groupdict().items():
        if name in names and value not in names[name]:
            return (
                f"the config plans no {name} {show(value)}; {near(value, names[name])}`snakemake status` lists its runs"
            )
    return ""
