"""Blocks of a cluster's file: kinds of nodes, a user's limits, prices, threads, and where packages come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import Field

from relay.spec.arithmetic import compute_capability
from relay.spec.cuda import CAPABILITY, Generation, generation_of
from relay.spec.job import FLAG
from relay.spec.setting import Device, Stack
from relay.spec.versions import VERSION
from relay.spec.yaml_file import Block, Natural, Positive, Text, Whole, fits, one_of

STACKS = get_args(Stack)
StackName = Annotated[str, one_of(*STACKS)]
# Texts that become part of commands.
Name = Annotated[Text, fits(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "letters, digits and . _ + -")]
PackageOfSite = Annotated[
    Text,
    fits(r"[A-Za-z0-9][A-Za-z0-9._-]*((==|~=|>=|<=|<|>)[A-Za-z0-9.*+!]+)?", "a package such as torch or torch==2.9.1"),
]
SitePath = Annotated[
    Text, fits(r"(?!-)[\w./+@~:,=% -]+", "a name or a path of letters, digits, blanks and . _ / + - @ ~ : , = %")
]
Size = Annotated[Text, fits(r"[1-9][0-9]*[BbKkMmGg]?", "a size such as 512m")]
Flag = Annotated[Text, fits(FLAG[1], FLAG[0])]

#: What limits count, in words.
COUNTED = {"jobs": "jobs", "nodes": "nodes", "gpus": "GPUs", "cpus": "CPUs"}


class Limits(Block):
    """The most that one user may have at once, in waiting and running jobs together. null: no limit is known."""

    jobs: Natural | None = Field(default=None, description="jobs")
    nodes: Natural | None = Field(default=None, description="nodes of all jobs")
    gpus: Natural | None = Field(default=None, description="GPUs of all jobs")
    cpus: Natural | None = Field(default=None, description="CPUs of all jobs")
    confirmed: bool = Field(
        default=True,
        description="whether they hold for you; false: others say so, and the plan only warns of larger jobs",
    )

    @property
    def stated(self) -> dict[str, int]:
        """The limits that the file states, whether they hold for this user or not: `jobs`, `nodes`, `gpus`, `cpus`."""
        return self.model_dump(exclude_none=True, exclude={"confirmed"})

    def exceeded(self, taken: dict[str, int]) -> list[str]:
        """What a job that takes so much has beyond the limits, in words."""
        over = {name: most for name, most in self.stated.items() if taken[name] > most}
        return [f"{taken[name]} {COUNTED[name]} of a user's {most}" for name, most in over.items()]


class Partition(Block):
    """A kind of node. A job uses the first partition that it fits into."""

    name: Name | None = Field(default=None, description="Slurm's name for the partition; null: Slurm chooses one")
    device: Device = Field(description="what its jobs compute on")
    gpu_name: Name | None = Field(default=None, description="GRES type of its GPUs, as `sinfo -o %G` shows; null: any")
    gpu_generation: Generation | None = Field(
        default=None, description="generation of its GPUs, where gpu_name does not tell it; null: as gpu_name says"
    )
    gpus_per_node: Whole = Field(default=0, description="GPUs of a node")
    cpus_per_node: Natural = Field(description="CPUs of a node")
    memory_mb_per_node: Natural | None = Field(default=None, description="memory of a node in MB; null: not checked")
    asks_memory: bool = Field(
        default=True,
        description="whether jobs ask for memory (sbatch --mem); false: the partition refuses or ignores that",
    )
    whole_nodes: bool = Field(
        default=False,
        description="whether each job gets its nodes alone; true: jobs ask for all GPUs of a node, whatever they use, "
        "and the plan counts whole nodes",
    )
    max_nodes: Natural | None = Field(default=None, description="largest number of nodes for a job; null: not checked")
    max_minutes: Natural | None = Field(
        default=None,
        description="longest time limit of a job, in minutes; null: not known, and no job is submitted until it is set",
    )
    limits: Limits = Field(default=Limits(), description="what one user may have at once in this partition")

    @property
    def shown(self) -> str:
        """The partition's name in messages."""
        return f"partition {self.name}" if self.name else f"Slurm's default partition ({self.device})"

    @property
    def generation(self) -> Generation | None:
        """The generation of its GPUs; None where it is not known."""
        return self.gpu_generation or generation_of(self.gpu_name)

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of its GPUs, or the least of their generation; None where neither is known.

        A generation that the file names is right where the GPU's name says another one: an RTX 6000 is of three.
        """
        named = generation_of(self.gpu_name)
        if self.gpu_generation and named != self.gpu_generation:
            return CAPABILITY[self.gpu_generation]
        return compute_capability(self.gpu_name)

    @property
    def slurms(self) -> tuple[str, str]:
        """What is equal for entries of the same partition of Slurm's; it is not known for those without a name."""
        return (self.name, "") if self.name else ("", self.device)

    def taken(self, nodes: int, gpus_per_node: int, cpus_per_node: int) -> dict[str, int]:
        """What a job takes here of a user's limits: `jobs`, `nodes`, `gpus`, `cpus`."""
        gpus, cpus = (self.gpus_per_node, self.cpus_per_node) if self.whole_nodes else (gpus_per_node, cpus_per_node)
        return {"jobs": 1, "nodes": nodes, "gpus": nodes * gpus, "cpus": nodes * cpus}

    def misfit(self, nodes: int, gpus_per_node: int, cpus_per_node: int, memory_mb: int) -> list[str]:
        """What a job asks for beyond the partition and its limits, in words; empty where it fits."""
        compared = (
            ("nodes", nodes, self.max_nodes),
            ("GPUs per node", gpus_per_node, self.gpus_per_node),
            ("CPUs per node", cpus_per_node, self.cpus_per_node),
            ("MB per node", memory_mb, self.memory_mb_per_node),
        )
        over = [f"{wanted} {unit} of {has}" for unit, wanted, has in compared if has is not None and wanted > has]
        taken = self.taken(nodes, gpus_per_node, cpus_per_node)
        return [*over, *(self.limits.exceeded(taken) if self.limits.confirmed else ())]


CORES_PER_GPU = 12  # where a site does not say: four GPUs beside 48 cores are usual


class Price(Block):
    """What an hour of a device costs. The plan shows the sum in the given currency. null: nothing is shown."""

    gpu_hour: Positive | None = Field(default=None, description="an hour of a GPU, with the CPUs that go with it")
    cpu_hour: Positive | None = Field(default=None, description="an hour of a CPU core, of jobs without GPUs")
    currency: Text = Field(default="EUR", description="the currency, or another unit such as credits, as text")

    def of(self, taken: Mapping[str, float]) -> float | None:
        """What an hour of a job's `gpus` and `cpus` costs; None where the site does not say. CPUs go with the GPUs."""
        each, count = (self.gpu_hour, taken["gpus"]) if taken["gpus"] else (self.cpu_hour, taken["cpus"])
        return None if each is None else each * count


@dataclass(frozen=True, kw_only=True)
class Charging:
    """What CPUs and GPUs count as. Cost is counted in CPU cores, because hours of different devices have no sum.

    A GPU counts as the cores that cost as much, or else as those that the site shares out with it.
    """

    cores_per_gpu: float = CORES_PER_GPU
    price: Price = field(default_factory=Price)

    @property
    def currency(self) -> str:
        """In what costs are told."""
        return self.price.currency if self.core_price else "core-hours"

    @property
    def core_price(self) -> float | None:
        """What a CPU core costs an hour or, where only GPUs have a price, its part of a GPU's; None without prices."""
        return self.price.cpu_hour or (self.price.gpu_hour / self.cores_per_gpu if self.price.gpu_hour else None)

    def cores(self, taken: Mapping[str, float]) -> float:
        """The CPU cores that these `gpus` and `cpus` are charged as: by the price, or else by the larger of the two."""
        price = self.price.of(taken)
        if price is not None and self.core_price:
            return price / self.core_price
        return float(max(taken["cpus"], taken["gpus"] * self.cores_per_gpu))


def charging(price: Price, cores_per_gpu: float | None, compared: Iterable[Mapping[str, float]]) -> Charging:
    """By a site's price where it tells the cost of all that is `compared`, since no sum is of money and hours."""
    if any(price.of(each) is None for each in compared):
        price = Price()
    by_price = price.gpu_hour / price.cpu_hour if price.gpu_hour and price.cpu_hour else None
    return Charging(cores_per_gpu=by_price or cores_per_gpu or CORES_PER_GPU, price=price)


Mode = Literal["wheels", "conda", "modules", "apptainer", "current"]
Source = Literal["wheels", "site", "conda", "modules", "apptainer", "current"]


class OpenMP(Block):
    """OpenMP's placement of threads. Where a value is null, the cluster's own setting stays."""

    places: Literal["threads", "cores", "sockets"] | None = Field(default=None, description="OMP_PLACES")
    bind: Literal["close", "spread", "primary"] | None = Field(default=None, description="OMP_PROC_BIND")
    stack: Size | None = Field(default=None, description="OMP_STACKSIZE, such as 512m")


class Environment(Block):
    """Where a job's Python packages come from."""

    mode: Mode = Field(
        default="wheels",
        description="wheels: a virtual environment on the node's own disk; conda: a conda environment; "
        "modules: the `python` that the modules provide; apptainer: a container; "
        "current: the environment that Snakemake runs in",
    )
    wheels_from: Literal["download", "site"] = Field(
        default="download",
        description="download: the locked wheels, downloaded and hash-checked on the login node; "
        "site: the cluster's own wheels, installed with `pip install --no-index`",
    )
    packages: dict[StackName, list[PackageOfSite]] = Field(
        default={}, description="the cluster's own wheels to install: {stack: [packages]}"
    )
    conda: dict[StackName, SitePath] = Field(
        default={}, description="conda environments: {stack: its name, its folder, or the file that creates it}"
    )
    image: SitePath | None = Field(
        default=None, description="the container's image file, on a disk that all nodes share"
    )
    python: SitePath | None = Field(
        default=None,
        description="the Python that virtual environments are made with; null: the one that `make install` used",
    )
    install_after: Text | None = Field(
        default=None,
        description="what to give on the login node before `make install`, so that its `python3` suits the project; it "
        "is shown, and never run",
    )
    driver_python: Literal["3.11", "3.12", "3.13"] | None = Field(
        default=None,
        description="version of Python that `make install` has to use, because the cluster's packages are for it: the "
        "plan warns of another; null: any",
    )
    torch: Literal["cpu", "cuda", "cu118", "cu124", "cu126", "cu128", "cu130", "auto"] = Field(
        default="auto",
        description="build of torch: cuda is the package registry's, the others are of PyTorch's own indexes; auto: "
        "the first that the partitions' GPUs and nvidia_driver can run",
    )
    torch_version: Annotated[Text, fits(VERSION, "a version such as 2.5.1")] | None = Field(
        default=None,
        description="version of torch that the modules, the conda environment, the image or the cluster's wheels give: "
        "strategies that need a newer one are skipped; null: only the jobs can tell",
    )
    torch_mpi: bool = Field(
        default=False,
        description="whether that torch was built with MPI (`torch.distributed.is_mpi_available()`), for backend mpi",
    )

    @property
    def source(self) -> Source:
        """Where a job's packages come from: the mode, or `site` for a cluster's own wheels."""
        return "site" if self.mode == "wheels" and self.wheels_from == "site" else self.mode


class LibTorch(Block):
    """How the C++ program of `snakemake libtorch` is built, beyond what torch's own CMake files say."""

    compile_flags: list[Flag] = Field(
        default=[], description="flags for the compiler; the job replaces variables, such as -I$EBROOTCUDA/include"
    )
    link_flags: list[Flag] = Field(
        default=[], description="flags for the linker, in the same way, such as -L$EBROOTCUDA/extras/CUPTI/lib64"
    )
