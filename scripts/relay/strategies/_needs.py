"""What strategies need of a task: each function says what a setting lacks, in one line, or None.

A strategy names them in its requirements (`needs`); one that it needs alone stands in its own file. The planner takes a
function out of the file's text, without importing it: it may use nothing but its arguments. `group`: the processes
that hold one replica together. `stages`: the parts into which the layers are cut.
"""

from __future__ import annotations

from relay.spec.run import Setting


def layers(setting: Setting, group: int, stages: int) -> str | None:
    """A layer with parameters for each stage."""
    task = setting.task
    if stages <= task.layers:
        return None
    each = f" ({stages // group} for each process)" if stages > group else ""
    return f"{setting.strategy.name} has {stages} stages{each}, {task.name} has {task.layers} layers with parameters"


def heads(setting: Setting, group: int, stages: int) -> str | None:
    """Attention heads that the processes of a replica divide evenly, where the task has any."""
    count = setting.task.network_options.get("heads", group)
    if count % group == 0:
        return None
    return f"{count} attention heads of {setting.task.name} are not divisible by {group} processes"


def matrices(setting: Setting, group: int, stages: int) -> str | None:
    """Matrices that make up a part of the parameters that is worth splitting."""
    if setting.task.matrices:
        return None
    return f"{setting.strategy.name} divides matrices, {setting.task.name} has next to none"
