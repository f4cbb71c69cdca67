"""The reasons why a setting cannot run. All are known at planning time, without torch and without a job."""

from collections.abc import Iterator, Mapping
from typing import Any

from relay.config.comparisons import Combination
from relay.config.config import Config
from relay.config.strategies import StrategyFile
from relay.environments.built import has_header
from relay.planning.inputs import Here
from relay.planning.settings import BACKENDS, OPTIMIZER_OPTIONS, default_backend
from relay.process.one_gpu import can_share
from relay.spec.labels import counted
from relay.spec.requirements import SCHEDULES, Requirements
from relay.spec.run import Setting
from relay.spec.setting import TF32
from relay.spec.tasks import ROUNDING, TaskSpec

DEVICE_NAMES = {"cpu": "CPUs", "cuda": "a GPU"}


def problems(
    combination: Combination, setting: Setting, *, config: Config, strategy: StrategyFile, here: Here
) -> list[str]:
    """Why the setting cannot run, each reason with its remedy; empty where it can."""
    needs = strategy.requirements
    if setting.shape.device not in needs.devices:
        remedy = f"; use {needs.twin} instead" if needs.twin else ""
        wanted = " or ".join(DEVICE_NAMES.get(d, d) for d in needs.devices)
        return [f"{setting.strategy.name} needs {wanted}, device is {setting.shape.device}{remedy}"]
    return [
        *of_devices(setting, needs, here),
        *_process_problems(setting, needs, here),
        *_backend_problems(combination, setting, needs, here),
        *_computing_problems(setting, needs),
        *_group_problems(setting, strategy),
        *_batch_problems(combination, setting, config, needs),
        *_optimization_problems(setting.task, combination.axes, setting.length.epochs),
    ]


def of_devices(setting: Setting, needs: Requirements, here: Here) -> Iterator[str]:
    """Why the devices that a setting asks for cannot be had, or are not for what needs this."""
    shape, strategy = setting.shape, setting.strategy.name
    nodes, per_node = shape.nodes, shape.devices_per_node
    if nodes > 1 and needs.processes == "one":
        yield f"{strategy} is one process, which cannot span {nodes} nodes"
    elif here.held and nodes > here.held.nodes:
        yield f"{nodes} nodes: allocation {here.held.job_id} has {here.held.nodes}"
    elif here.held and shape.cpus_per_node > here.held.cpus:
        yield f"{shape.cpus_per_node} CPUs on a node: allocation {here.held.job_id} has {here.held.cpus}"
    elif nodes > 1 and not (here.site or here.held):
        yield f"{nodes} nodes: needs a cluster profile, or an allocation; on one machine give devices_per_node"
    if shape.devices < needs.least_devices:
        least = needs.least_devices
        yield f"{strategy} needs at least {least} devices, has {shape.devices}; give devices_per_node: {least}"
    if needs.processes == "one" and not needs.divides and per_node > 1:
        remedy = "; give cpus_per_task instead" if shape.device == "cpu" else ""
        yield f"{strategy} uses one device, devices_per_node is {per_node}{remedy}"
    most = (here.gpus or 0) * (here.sharing.ranks if can_share(shape) else 1)
    if shape.device == "cuda" and here.gpus is not None and per_node > most:
        why = here.sharing.why_not if can_share(shape) else ""
        if not can_share(shape) and here.sharing.ranks > 1 and needs.processes == "one":
            why = "one process with several devices cannot have the same GPU twice"
        beyond = f"devices_per_node is {per_node}, {here.gpus} GPU{'s' * (here.gpus > 1)} can be used here"
        yield f"{beyond}{why and '; '}{why}"
    if here.site is None and "libaio" in needs.node_needs.get(shape.device, ()) and not has_header("libaio.h"):
        yield f"{strategy} needs libaio, and this machine has no libaio.h (Debian: libaio-dev)"
    if shape.backend is None:
        offered = " or ".join(BACKENDS[shape.device])
        yield f"{strategy} needs {' or '.join(needs.backends)}, device {shape.device} offers {offered}"
    if shape.threads > shape.cpus_per_task:
        yield f"threads {shape.threads} exceed cpus_per_task {shape.cpus_per_task}"


def _process_problems(setting: Setting, needs: Requirements, here: Here) -> Iterator[str]:
    shape, feeding = setting.shape, setting.feeding
    launcher, world_size = shape.launcher, shape.world_size
    if feeding.data_workers and feeding.loader == "resident":
        yield f"data_workers {feeding.data_workers} have no work with loader resident; use loader dataloader"
    if launcher != "none" and world_size == 1:
        yield f"launcher {launcher} is for several processes, this is one; use launcher none"
    if launcher == "none" and world_size > 1:
        yield f"launcher none starts one process, {world_size} are needed; leave it out"
    if launcher == "srun" and not (here.site or here.held):
        yield "launcher srun needs a cluster profile, or an allocation; leave it out"
    if launcher in ("direct", "spawn") and shape.nodes > 1:
        yield f"launcher {launcher} works on one node only, nodes is {shape.nodes}; use launcher torchrun"
    if launcher == "horovodrun" and shape.nodes > 1:
        yield f"launcher horovodrun needs ssh for {shape.nodes} nodes, which jobs do not have; use launcher srun"
    if launcher == "horovodrun" and needs.stack != "horovod":
        yield f"launcher horovodrun is for Horovod alone, the strategy is {setting.strategy.name}; use torchrun"
    shared = shape.processes_per_device
    if shared == 1 and needs.processes == "several per device":
        yield f"{setting.strategy.name} is for several processes on a device; give processes_per_device, such as 2"
    if shared > 1 and needs.processes != "several per device":
        has = needs.processes.replace("one", "one process")
        yield f"{setting.strategy.name} has {has}, processes_per_device is {shared}"


def _backend_problems(combination: Combination, setting: Setting, needs: Requirements, here: Here) -> Iterator[str]:
    """Why the processes cannot communicate by the backend that was asked for."""
    shape, backend = setting.shape, combination.axes["backend"]
    if backend is None:
        return
    offered = (*BACKENDS[shape.device], "mpi")
    if shape.world_size == 1 and backend != default_backend(shape, needs):
        yield f"backend {backend} is for several processes, this is one; leave it out"
    elif backend not in offered:
        yield f"backend {backend} needs a GPU for each process, device is {shape.device}; use gloo"
    elif backend not in needs.backends:
        fitting = " or ".join(each for each in offered if each in needs.backends)
        yield f"{setting.strategy.name} works with {fitting}, backend is {backend}"
    elif backend == "nccl" and shape.processes_per_device > 1:
        yield f"backend nccl refuses processes that share a GPU, processes_per_device is {shape.processes_per_device}"
    elif backend == "mpi" and not (here.site and here.site.environment.torch_mpi):
        place = f"{here.site.file} declares none" if here.site else "this is no cluster"
        yield (
            "backend mpi needs a torch that was built with MPI, which PyTorch's own packages are not, and "
            f"{place} (environment.torch_mpi); use gloo"
        )
    elif backend == "mpi" and shape.launcher != "srun":
        yield f"backend mpi needs launcher srun, whose processes MPI knows; the launcher is {shape.launcher}"


def _computing_problems(setting: Setting, needs: Requirements) -> Iterator[str]:
    precision, options = setting.computation.precision, setting.strategy.options
    if setting.shape.device == "cpu":
        if precision in TF32:
            yield f"precision {precision} is a mode of GPUs, device is cpu; use bf16"
        for name, values in needs.gpu_only.items():
            if options[name] in values:
                yield f"{name} {options[name]} needs GPUs, device is cpu"
    if precision not in ("bf16", "fp16"):
        for name, values in needs.low_precision_only.items():
            if options[name] in values:
                yield f"{name} is for precision bf16 or fp16, precision is {precision}"
    for name, precisions in needs.not_in.items():
        if precision in precisions.get(options[name], ()):
            yield f"{name} {options[name]} does not work in precision {precision}"
    for name, (other, value) in needs.part_of.items():
        if options[name] != needs.options[name] and options[other] != value:
            yield f"{name} {options[name]} has no effect with {other} {options[other]}; use {other} {value}"
    if setting.computation.compile and not needs.compiles:
        yield f"{setting.strategy.name} cannot be compiled"
    yield from _task_problems(setting, needs)


def _task_problems(setting: Setting, needs: Requirements) -> Iterator[str]:
    """Why the task cannot be trained so, by its card; nothing for what the card does not know."""
    task, card, options = setting.task, setting.task.card, setting.strategy.options
    if card.synced and setting.shape.device == "cpu":
        yield f"SyncBatchNorm ({card.synced[0]}) computes on GPUs alone, device is cpu; use BatchNorm there"
    pictures = any(len(leaf.shape) == 3 and leaf.shape[0] > 1 for leaf in card.batch)
    if setting.computation.channels_last and card.batch and not pictures:
        yield f"channels_last is for images of several channels, a batch of {task.name} has none"
    elif setting.computation.channels_last and card.channels_last is False and setting.shape.device == "cpu":
        yield f"channels_last is not for {task.name}: on CPUs its model cannot be computed so"
    if card.parameters is not None and not card.cross_entropy:
        for name, values in needs.cross_entropy_only.items():
            if options[name] in values:
                yield f"{name} is for cross entropy of the model's outputs, and the loss of {task.name} is not that"
    if setting.feeding.loader == "resident":
        if card.equal_shapes is False:
            yield f"loader resident is for samples of one shape, those of {task.name} differ; use loader dataloader"
        if card.random_samples:
            yield (
                f"loader resident keeps samples as they are, those of {task.name} differ from epoch to epoch; "
                "use loader dataloader"
            )


def _group_problems(setting: Setting, strategy: StrategyFile) -> Iterator[str]:
    """Why the strategy cannot divide its work among the processes."""
    needs, world_size, options = strategy.requirements, setting.shape.world_size, setting.strategy.options
    group = needs.group_size(world_size, options)
    if world_size % group:
        yield f"{needs.group} {group} does not divide {counted(world_size, 'process')}"
    for name in needs.divisors:
        if options[name] > 1 and (world_size % options[name] or options[name] >= world_size):
            yield f"{name} {options[name]} does not divide {counted(world_size, 'process')} into groups of two or more"
    if "samples" in needs.divides and needs.group and group == world_size > 1:
        yield f"{needs.group} {group} leaves one replica of {world_size} processes; nothing divides the samples"
    if needs.pipelined:
        computed = (setting.computation.compile, bool(setting.computation.channels_last))
        unfit = SCHEDULES[options["schedule"]].problems(group, options["micro_batches"], *computed)
        yield from (f"schedule {options['schedule']} {problem}" for problem in unfit)
    yield from strategy.unmet(setting)


def _batch_problems(combination: Combination, setting: Setting, config: Config, needs: Requirements) -> Iterator[str]:
    batch, shape, dataset = setting.batch.global_batch_size, setting.shape, setting.dataset
    parts = needs.slices(setting)
    if combination.axes["global_batch_size"] is not None and combination.axes["batch_per_device"] is not None:
        per_device = combination.axes["batch_per_device"]
        yield f"global_batch_size {batch} contradicts batch_per_device {per_device}; give one"
    if batch % parts:
        replicas = shape.world_size // needs.group_size(shape.world_size, setting.strategy.options)
        unit = "devices" if needs.processes == "one" else "processes" if replicas == shape.world_size else "replicas"
        yield f"global_batch_size {batch} is not divisible by {parts} {unit}"
    slice_ = batch if batch % parts else batch // parts
    for name in needs.whole_batches:
        if slice_ % (parts_of_slice := setting.strategy.options.get(name, 1)):
            yield f"a replica's {slice_} samples are not divisible by {name} {parts_of_slice}"
    if batch > dataset.train_count:
        yield f"global_batch_size {batch} exceeds {dataset.name}'s {dataset.train_count} training samples"
        return
    steps, per_epoch = setting.length.total_steps, setting.length.steps_per_epoch
    if steps < 1:
        yield f"epochs {setting.length.epochs:g} are less than one step; an epoch has {per_epoch} steps"
    elif steps <= config.warmup_steps:
        least = f"allowed: at most {steps - 1}, or more epochs"
        yield f"warmup_steps {config.warmup_steps} leave none of {counted(steps, 'step')} to be timed; {least}"


def _optimization_problems(task: TaskSpec, axes: Mapping[str, Any], epochs: float) -> Iterator[str]:
    """Why a run of so many epochs cannot be trained by the optimizer and the schedule that `axes` ask for."""
    if task.optimizer:  # else it is not known yet
        for name in OPTIMIZER_OPTIONS:
            if axes[name] is not None and name not in task.card.optimizer_options:
                yield f"the optimizer of {task.name}, {task.optimizer}, has no option {name}"
    kind, warmup = task.schedule["kind"], task.schedule.get("warmup_epochs", 0)
    for name, member in (("learning_rate_step_epochs", "every_epochs"), ("learning_rate_step_gamma", "gamma")):
        if kind != "step" and axes[name] is not None:
            yield f"{name} {axes[name]:g} has no effect with learning_rate_schedule {kind}; use step"
        elif kind == "step" and task.schedule[member] is None:
            yield f"learning_rate_schedule step needs {name}, and {task.name} has none; give it"
    if kind == "scheduler" and not task.card.scheduler:
        yield f"learning_rate_schedule scheduler needs a method scheduler(), and {task.name} has none; write one"
    if kind == "scheduler" and warmup:
        yield f"learning_rate_warmup_epochs {warmup:g} have no effect with {kind}; put the warm-up into scheduler()"
    if warmup > epochs:
        yield f"learning_rate_warmup_epochs {warmup:g} are more than the run's {epochs:g} epochs"


def why_unproven(task: TaskSpec) -> str:
    """Why nothing can be proven of a task; '' where its gates can tell, and where nobody has looked at the loss.

    The random numbers have to be torch's, for no proof can repeat others. And the loss of a batch has to be the mean of
    its parts' losses, or dividing the batch makes it another training. That holds of strategies that divide no batch
    as well: all gates of a task share its reference, which finds the same and then trains nothing.
    """
    if reason := task.card.unrepeatable:
        return reason
    difference = task.card.mean_difference
    if difference is None or difference <= ROUNDING:
        return ""
    return f"the loss of {task.name} is no mean over samples, so that a divided batch is another training"
