"""What strategies need from a task. Each function returns one line that says what a setting lacks, or None.

A strategy names its functions in `needs` of its requirements. A function that only one strategy needs stands in that
strategy's file. The planner extracts a function from the file's text and does not import the file, so that a function
may use nothing but its arguments. `group` is the number of processes that hold one replica together. `stages` is the
number of pipeline stages.
"""

from relay.spec.run import Setting


def layers(setting: Setting, group: int, stages: int) -> str | None:
    """The model can be cut into as many parts as there are pipeline stages."""
    name, places = setting.strategy.name, setting.task.card.cuts
    stages *= setting.shape.devices_per_process  # a process with several devices has a stage on each
    if setting.task.card.uncuttable:
        return f"{name} cuts the model, and {setting.task.name}'s cannot be cut: {setting.task.card.uncuttable}"
    if places is None or stages <= len(places) + 1:
        return None
    each = f" ({stages // group} for each process)" if stages > group else ""
    return f"{name} has {stages} stages{each}, the model of {setting.task.name} can be cut into {len(places) + 1}"


def cuts(setting: Setting, group: int, stages: int) -> str | None:
    """The option `cut_before` names a layer for each stage but the first, or none at all."""
    stages *= setting.shape.devices_per_process  # a process with several devices has a stage on each
    count = len(setting.strategy.options["cut_before"].replace(",", " ").split())
    if count in (0, stages - 1):
        return None
    names = f"cut_before names {count} layer{'s' * (count > 1)}"
    return f"{names}, {setting.strategy.name} has {stages} stages here; name {stages - 1}, or none"


def groups(setting: Setting, group: int, stages: int) -> str | None:
    """The optimiser of a part of the parameters is that of the whole model: each process hands over its stages' own."""
    if not setting.task.card.grouped_by_place:
        return None
    return (
        f"{setting.strategy.name} calls optimizer() with each stage's parameters, and that of {setting.task.name} "
        "groups them by their place in the list; group them by what they are, such as their number of dimensions"
    )


def all_parameters(setting: Setting, group: int, stages: int) -> str | None:
    """The optimiser's step reads no more than the tensor that it changes: a process has a stage's parameters alone."""
    if setting.task.card.optimizer_scope != "model":
        return None
    return (
        f"{setting.strategy.name} updates each stage's parameters by themselves, and a step of {setting.task.name}'s "
        "optimiser reads all parameters at once; to clip, write clip_grad_norm = 1.0 in the task's class"
    )


def whole_tensors(setting: Setting, group: int, stages: int) -> str | None:
    """The optimiser's step reads no more than the number that it changes: DeepSpeed updates flat pieces of a row."""
    if (scope := setting.task.card.optimizer_scope) == "element":
        return None
    reads = "all parameters at once" if scope == "model" else "whole tensors, as LAMB and Muon do"
    helps = "; to clip, write clip_grad_norm = 1.0 in the task's class" if scope == "model" else ""
    name, task = setting.strategy.name, setting.task.name
    return f"{name} updates flat pieces of parameters, and a step of {task}'s optimiser reads {reads}{helps}"


def first_derivatives(setting: Setting, group: int, stages: int) -> str | None:
    """Neither the forward pass nor the loss takes gradients: FSDP has let go of a module's parameters when they are
    read for those, and torch does not differentiate what tensor parallelism exchanges a second time."""
    if not setting.task.card.differentiates:
        return None
    return (
        f"the model or the loss of {setting.task.name} takes gradients (torch.autograd.grad), and "
        f"{setting.strategy.name} cannot compute the gradients of those; use ddp"
    )


def unconditional(setting: Setting, group: int, stages: int) -> str | None:
    """No parameter is left out by some samples alone: processes gather it, or add up its gradients, together."""
    if not (names := setting.task.card.conditional):
        return None
    return (
        f"some samples, or random numbers, leave out parameters of {setting.task.name}'s model, such as {names[0]}, "
        f"and the processes of {setting.strategy.name} need them at the same time; use ddp"
    )


def unconditional_if_static(setting: Setting, group: int, stages: int) -> str | None:
    """DDP with a static graph waits for the gradients that the first step had."""
    names = setting.task.card.conditional
    if not names or not setting.strategy.options.get("static_graph"):
        return None
    return (
        f"static_graph takes each step to use the same parameters, and some samples, or random numbers, leave out "
        f"{names[0]} of {setting.task.name}'s model; leave it off"
    )


def heads(setting: Setting, group: int, stages: int) -> str | None:
    """The processes of a replica must divide attention heads, experts, and what else stays split between modules."""
    for name, count in setting.task.card.divisible:
        if count % group:
            return f"{count} {name} of {setting.task.name} are not divisible by {group} processes"
    return None


def matrices(setting: Setting, group: int, stages: int) -> str | None:
    """A large enough part of the parameters must be in matrices, by the limit of tensor parallelism itself."""
    share = setting.task.card.matrices
    if share is None or share >= 0.1:
        return None
    return (
        f"{setting.strategy.name} divides matrices, which have {share:.1%} of the parameters of {setting.task.name}, "
        "or of those that are trained; at least 10% is needed"
    )


def adam_if_fused(setting: Setting, group: int, stages: int) -> str | None:
    """DeepSpeed's FusedAdam updates as Adam or AdamW do."""
    task = setting.task
    if not setting.strategy.options.get("fused_adam") or task.optimizer in ("adam", "adamw"):
        return None
    return f"fused_adam is for Adam and AdamW, {task.name} is trained with {task.optimizer}"
