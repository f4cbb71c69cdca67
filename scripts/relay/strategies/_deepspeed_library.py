"""DeepSpeed as the ZeRO strategies use it: imported for one kind of device, quietly; its Adams; float64."""

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import Any
from unittest import mock

import torch

from relay.base.errors import UserError
from relay.spec.versions import lacking, release
from relay.strategies import _deepspeed_operations as operations
from relay.strategies._checkpoints import added
from relay.task.bound import BoundTask
from relay.task.learning_rate import FACTOR

# The versions whose insides are known here: where the parts of a parameter lie, and what float64 needs.
KNOWN = "deepspeed>=0.14.5,<0.20"
# Between the processes of a node. DeepSpeed does without it, so that it is used only where the wheel has it.
SHARED_MEMORY = "deepspeed_shm_comm"
ADAMS = (torch.optim.Adam, torch.optim.AdamW)
TAKEN = ("params", "lr", "betas", "eps", "weight_decay", FACTOR)  # of a group, by DeepSpeed's Adams


def imported(device: torch.device) -> Any:
    """The module `deepspeed`, for this process's device.

    Raises UserError for a version whose insides are not known.
    """
    name_device(device)
    import deepspeed
    from deepspeed import git_version_info

    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.WARNING)
    logger.addFilter(_worth_telling)
    for problem in lacking([KNOWN], {"deepspeed": deepspeed.__version__.strip()}):
        raise UserError(f"zero {problem}: how a checkpoint is made of its parts is known for these versions alone")
    if device.type == "cpu" and release(deepspeed.__version__) < (0, 16):  # they ask the program numactl otherwise
        os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
    warnings.filterwarnings("ignore", r".*torch\.distributed\.\w+. is deprecated", FutureWarning)  # DeepSpeed's calls
    operations.take_over()
    if not git_version_info.installed_ops.get(SHARED_MEMORY):
        deepspeed.ops.__compatible_ops__[SHARED_MEMORY] = False
    with redirect_stdout(io.StringIO()):  # it prints that an operation was "built", which it has only loaded
        deepspeed.init_distributed(dist_init_required=False)
    return deepspeed


def name_device(device: torch.device) -> None:
    """Tell DeepSpeed which device is this process's: it takes the local rank for its number, which may name none."""
    os.environ["DS_ACCELERATOR"] = device.type  # it asks the machine otherwise, and takes a GPU that it finds
    if device.index is not None:
        for name in {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"} & os.environ.keys():
            os.environ[name] = str(device.index)


def _worth_telling(record: logging.LogRecord) -> bool:
    """Not that DeepSpeed's own authors have not tried torch's SGD: the gate does."""
    return "untested optimizer" not in record.getMessage()


def with_adam(name: str, task: BoundTask, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """DeepSpeed's Adam of this name for torch's Adam and AdamW: DeepSpeedCPUAdam updates in main memory, FusedAdam by a
    single kernel. Other optimizers as they are, and all in float64, in which DeepSpeed's do not compute.
    """
    if type(optimizer) not in ADAMS or task.dtype == torch.float64:
        return optimizer
    from deepspeed.ops import adam

    mode = "adam_w_mode" if name == "FusedAdam" else "adamw_mode"
    groups = [{key: group[key] for key in group if key in TAKEN} for group in optimizer.param_groups]
    its_adam: torch.optim.Optimizer = getattr(adam, name)(groups, **{mode: isinstance(optimizer, torch.optim.AdamW)})
    return its_adam


def go_on_from(optimizer: Any, states: list[dict[str, Any]]) -> None:
    """Bring one of DeepSpeed's Adams to where its loaded states are: they count steps in whole numbers of Python.

    DeepSpeedCPUAdam multiplies the powers of its betas step by step, in C++ and in float32. Started anew, it would
    compute them in another way, with another rounding.
    """
    if not type(optimizer).__module__.startswith("deepspeed."):
        return
    for state in states:
        if "step" in state:
            state["step"] = int(state["step"])
    if not hasattr(optimizer, "ds_opt_adam"):
        return
    steps = max((state["step"] for state in states), default=0)
    group = optimizer.param_groups[0]
    values, nothing = (*group["betas"], group["eps"], 0.0, True), [torch.zeros(1) for _ in range(4)]
    for step in range(1, steps + 1):
        optimizer.ds_opt_adam.adam_update(optimizer.opt_id, step, group["lr"], *values, *nothing)


def keep_no_weights(engine: Any) -> None:
    """Let an engine of stage 3 keep no weights for the backward pass.

    torch's linear function keeps a view of its weights, and with it the memory of what DeepSpeed has given up:
    four bytes for each parameter. DeepSpeed has one that keeps none, and would put it into torch's place for good, and
    for all of the process. Here it is there while the engine computes.
    """
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    _within(engine, lambda: mock.patch.object(torch.nn.functional, "linear", zero3_linear_wrap), "forward", "backward")


def count_once(zero: Any) -> None:
    """Let what an optimiser counts in a group, such as its steps, advance once in a step of stage 3.

    DeepSpeed updates one sub-group after the other, each by a step of the optimiser, which counts in every group.
    """
    groups, group_of, step = zero.optimizer.param_groups, zero.sub_group_to_group_id, zero._optimizer_step
    before: dict[int, dict[str, Any]] = {}  # by group: its numbers before the step

    def counted(sub_group: int) -> None:
        numbers, own = added(zero.optimizer), group_of[sub_group]
        if group_of.get(sub_group - 1) != own:  # those of a group follow each other
            before[own] = numbers[own]
        _count_as(groups[own], numbers[own], before[own])
        step(sub_group)
        for place, now in enumerate(added(zero.optimizer)):
            if place != own:
                _count_as(groups[place], now, numbers[place])

    zero._optimizer_step = counted


def _count_as(group: dict[str, Any], now: dict[str, Any], then: dict[str, Any]) -> None:
    for name in now.keys() - then.keys():
        del group[name]
    group |= then


def keep_float64(engine: Any) -> None:
    """Let an engine leave gradients, and the norm by which it clips them, in float64: it makes them `.float()`."""
    _within(engine, _floats_kept, "backward", "step")


def _within(engine: Any, context: Callable[[], AbstractContextManager[Any]], *methods: str) -> None:
    """Let methods of an engine be called within a context of their own each time."""

    def within(compute: Callable[..., Any]) -> Callable[..., Any]:
        def computed(*given: Any, **named: Any) -> Any:
            with context():
                return compute(*given, **named)

        return computed

    for name in methods:
        setattr(engine, name, within(getattr(engine, name)))


@contextmanager
def _floats_kept() -> Iterator[None]:
    """Within, `.float()` and DeepSpeed's FloatTensor leave float64 as it is: of norms, and up to 0.18.0 of all else."""
    from deepspeed.accelerator import get_accelerator

    to_float = torch.Tensor.float

    def kept(tensor: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        return tensor if tensor.dtype == torch.float64 else to_float(tensor, *given, **named)

    def float_tensor(accelerator: Any, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=accelerator.current_device_name())

    with (
        mock.patch.object(torch.Tensor, "float", kept),
        mock.patch.object(type(get_accelerator()), "FloatTensor", float_tensor),
    ):
        yield


def _masters_in_float64() -> AbstractContextManager[Any]:
    """A context in which an engine keeps what it optimises in float64."""
    from deepspeed.runtime.base_optimizer import ZeROOptimizer

    if not hasattr(ZeROOptimizer, "_configure_master_weights"):  # one place for the type, which came after 0.18.0
        return _floats_kept()
    configure = ZeROOptimizer._configure_master_weights

    def master_weights(*given: Any, **named: Any) -> torch.dtype:
        configure(*given, **named)
        return torch.float64

    return mock.patch.object(ZeROOptimizer, "_configure_master_weights", master_weights)


@contextmanager
def in_type(dtype: torch.dtype) -> Iterator[None]:
    """While an engine is built: let it keep and average what it optimises in float64, where the model is in float64.

    DeepSpeed has no float64. It takes such a model, and in silence keeps float32 copies that it trains.
    """
    from deepspeed.runtime.engine import DeepSpeedEngine

    if dtype != torch.float64:
        yield
        return
    with (
        _masters_in_float64(),
        mock.patch.object(DeepSpeedEngine, "communication_data_type", torch.float64),
        mock.patch.object(DeepSpeedEngine, "get_data_types", return_value=(torch.float64, torch.float64)),
    ):
        yield
