"""The fields of a setting, in groups. Each field is declared here once, and everything else is made from that.

To add a field, declare it here, or in `recipe.py` if it says how a run learns (batch, optimizer, schedule, length).
Write the code where it acts. Then run `make schema`, which updates `config/README.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from relay.spec.declare import Axis, declare
from relay.spec.script import Script

Precision = Literal["fp32", "tf32", "tf32_matmul", "tf32_convolution", "bf16", "fp16", "fp64"]
Launcher = Literal["torchrun", "direct", "srun", "spawn", "horovodrun", "none"]
Loader = Literal["dataloader", "resident"]
Device = Literal["cpu", "cuda"]
Backend = Literal["nccl", "gloo", "mpi"]
Stack = Literal["torch", "lightning", "deepspeed", "horovod"]

# Which operations of a GPU use TF32, by the precisions that have it. PyTorch's own default is tf32_convolution.
TF32: Mapping[str, frozenset[str]] = {
    "tf32": frozenset({"matmul", "convolution"}),
    "tf32_matmul": frozenset({"matmul"}),
    "tf32_convolution": frozenset({"convolution"}),
}
# Far beyond any node's CPUs, and still few enough to be started.
MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class StrategySpec:
    """A strategy as a run uses it: its file, its stack, and the values of its options.

    `file` is relative to the working directory. `divides` names what the strategy splits over the processes. `lossy`
    maps each option that deliberately rounds what is sent to the relative error that it may cause in an update.
    `node_needs` names what the strategy requires of each node; it is not part of the identity. `script`: in place of a
    strategy, a command that is measured as it stands; `name` is then its name, and `options` are its placeholders'.
    """

    name: str
    file: str = ""
    stack: str = "torch"
    options: Mapping[str, Any] = field(default_factory=dict)
    divides: tuple[str, ...] = ()
    node_needs: tuple[str, ...] = ()
    lossy: Mapping[str, float] = field(default_factory=dict)
    script: Script | None = None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Nodes, their devices and processes, the CPUs of each process, and what starts them."""

    device: Device = declare("cpu", means="the kind of device", label="{}", bears_on="identity gate job")
    nodes: int = declare(
        1, means="nodes", label="{} node|{} nodes", bears_on="identity gate job", axis=Axis(), ge=1
    )  # fmt: skip
    devices_per_node: int = declare(
        1,
        means="devices on each node: GPUs, or processes' shares of a CPU",
        label="{} device per node|{} devices per node",
        bears_on="identity gate job",
        axis=Axis(),
        ge=1,
    )
    processes_per_device: int = declare(
        1,
        means="processes that share each device, for strategies that allow several",
        label="{} process per device|{} processes per device",
        bears_on="identity gate job",
        axis=Axis(),
        ge=1,
    )
    devices_per_process: int = declare(
        1,
        means="devices that each process uses: all those of its node, for strategies with one process",
        bears_on="identity gate job",
        ge=1,
    )
    cpus_per_task: int = declare(
        1,
        means="CPU cores of each process",
        label="{} CPU|{} CPUs",
        bears_on="identity job",
        axis=Axis(null="the site's share of its GPUs, else 1"),
        ge=1,
        le=MOST_THREADS,
    )
    threads: int = declare(
        1,
        means="threads within an operation, per process",
        label="{} thread|{} threads",
        bears_on="identity job",
        axis=Axis(null="as many as cpus_per_task"),
        ge=1,
        le=MOST_THREADS,
    )
    interop_threads: int = declare(
        1,
        means="operations that may run at the same time, per process",
        label="{} inter-op thread|{} inter-op threads",
        bears_on="identity",
        axis=Axis(),
        ge=1,
        le=MOST_THREADS,
    )
    launcher: Launcher = declare(
        "none",
        means="what starts the processes: torchrun (one on each node, which starts the node's processes), "
        "direct (the same on one node, without importing torch itself, so that a job begins sooner), "
        "srun (Slurm starts every process), spawn (torch.multiprocessing, on one node), "
        "horovodrun (Horovod's own, on one node)",
        label="launcher {}",
        bears_on="identity job",
        axis=Axis(
            null="direct for several on one node, torchrun on several and for commands, srun with mpi, none for one"
        ),
    )
    backend: Backend | None = declare(
        "gloo",
        means="what processes communicate by: nccl (between GPUs), gloo, or mpi, where the site's torch has it",
        label="{}",
        bears_on="identity gate job",
        axis=Axis(null="nccl on GPUs, gloo where several processes share one and on CPUs"),
    )

    @property
    def processes_per_node(self) -> int:
        """Processes on each node."""
        return self.devices_per_node * self.processes_per_device // self.devices_per_process

    @property
    def world_size(self) -> int:
        """Processes of the whole run."""
        return self.nodes * self.processes_per_node

    @property
    def devices(self) -> int:
        """Devices of the whole run. A process may use several of them, or share one with other processes."""
        return self.nodes * self.devices_per_node

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a job asks for on each node."""
        return self.devices_per_node if self.device == "cuda" else 0

    @property
    def cpus_per_node(self) -> int:
        """CPU cores that a job asks for on each node."""
        return self.cpus_per_task * self.processes_per_node

    @property
    def taken(self) -> dict[str, int]:
        """The CPU cores and GPUs that a job asks for on all nodes."""
        return {"cpus": self.nodes * self.cpus_per_node, "gpus": self.nodes * self.gpus_per_node}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the processes run: the site, its kind of GPU, its software."""

    site: str = declare("local", means="the cluster, or local", bears_on="identity gate job")
    gpu_name: str | None = declare(None, means="the site's name for its kind of GPU")
    software: str = declare(
        "current", means="where Python comes from: the environment's mode, and a digest of what is installed"
    )
    torch_version: str | None = declare(
        None, means="the version of torch where the driver's own Python trains; null: the lock or the site has it"
    )
    variables: str = declare(
        "", means="environment variables that change arithmetic, as the driver had them: NAME=value, joined by '; '"
    )


@dataclass(frozen=True, kw_only=True)
class Computation:
    """How the arithmetic is done."""

    precision: Precision = declare(
        "fp32",
        means="floating-point format of matrix products and convolutions; parameters are fp64 in fp64, otherwise fp32. "
        "tf32, on GPUs, is for both; tf32_matmul and tf32_convolution are for one of them, and the other is in fp32 "
        "(PyTorch's own default is tf32_convolution)",
        label="{}",
        axis=Axis(),
    )
    compile: bool = declare(
        False,
        means="whether the network is compiled by torch.compile",
        label="compiled|not compiled",
        bears_on="identity gate job",
        axis=Axis(),
    )
    channels_last: bool | None = declare(
        False,  # None for a command, which nobody has asked
        means="whether the channels of each pixel lie side by side in memory, for networks with convolutions",
        label="channels last|channels first",
        axis=Axis(
            null="true for a model of pictures that computes the same so, on CPUs, and on GPUs in bf16, fp16 and tf32; "
            "not where the strategy does not allow it"
        ),
    )
    cuda_graph: bool = declare(
        False, means="whether a step on a GPU is captured as a CUDA graph, and replayed, where that computes the same"
    )
    activation_checkpointing: bool = declare(
        False,
        means="whether activations are computed again in the backward pass, to save memory",
        label="activations recomputed|activations kept",
        axis=Axis(),
    )


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """How batches reach the processes."""

    loader: Loader = declare(
        "resident",
        means="where batches come from: dataloader (PyTorch's DataLoader over single samples), "
        "resident (the whole training set lies on the device)",
        label="{}",
        bears_on="identity",
        axis=Axis(null="resident where all samples have one shape, are not random and take at most 4 GiB"),
    )
    data_workers: int = declare(
        0,
        means="worker processes of each process's dataloader",
        label="{} worker|{} workers",
        bears_on="identity",
        axis=Axis(null="on GPUs as many as cpus_per_task, on CPUs 0"),
        ge=0,
        le=MOST_THREADS,
    )
