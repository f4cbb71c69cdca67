"""The model of a cluster's file in `config/sites/`, and what follows from it for a job.

These files hold everything that differs between clusters, and only the planner reads them. `scripts/schema.py` makes
the editors' schema, `config/sites/README.md` and the ready profiles from this model.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from relay.base.errors import UserError
from relay.spec import cuda, yaml_file
from relay.spec.contradictions import contradictions
from relay.spec.messages import show, unknown
from relay.spec.site_blocks import STACKS, Environment, LibTorch, Limits, Name, OpenMP, Partition, Price
from relay.spec.yaml_file import Block, Natural, Text, fits, one_of, refused, validated

SITES = Path("config/sites")
# Texts that become part of commands, like the names and paths in the blocks.
FileName = Annotated[Text, fits(r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits and . _ -")]
Features = Annotated[Text, fits(r"[A-Za-z0-9._+&|*()\[\]-]+", "features, with & | * ( ) [ ]")]
Mail = Annotated[Text, fits(r"[A-Za-z0-9._+-]+(@[A-Za-z0-9.-]+)?", "an address such as name@example.org")]
Driver = Annotated[Text, fits(r"[1-9][0-9]{2}(\.[0-9]+){0,2}", "a version such as 550.54.15")]
Disk = Annotated[Text, fits(r"[/$][A-Za-z0-9._/${}-]*", "a folder or a variable, such as /tmp or $SLURM_TMPDIR/relay")]
Interface = Annotated[Text, fits(r"[A-Za-z0-9._:-]+", "an interface such as bond0")]
Module = Annotated[Text, fits(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "a module such as python/3.11")]
Capabilities = Annotated[
    Text, fits(r"[0-9]+\.[0-9](\+PTX)?(;[0-9]+\.[0-9](\+PTX)?)*", "compute capabilities such as 8.0;9.0")
]
GpuRequest = Literal["gpus-per-node", "gres"]
MailType = Literal[
    "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT",
    "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS",
]  # fmt: skip
# Slurm takes them in small letters as well, as some pages write them.
Event = Annotated[MailType, BeforeValidator(lambda name: name.upper() if isinstance(name, str) else name)]


class Site(Block):
    """A cluster's file."""

    name: FileName = Field(description="the cluster's name, which is also the name of this file")
    description: Text = Field(description="which cluster this is")
    verified: Text = Field(
        default="not stated", description="where this file was tried, and where its values come from"
    )
    account: Name | None = Field(default=None, description="account that the cluster charges (sbatch --account)")
    account_required: bool = Field(default=False, description="whether the cluster refuses jobs without an account")
    qos: Name | None = Field(default=None, description="quality of service (sbatch --qos)")
    constraint: Features | None = Field(default=None, description="features that nodes must have (sbatch --constraint)")
    reservation: Name | None = Field(default=None, description="reservation to use (sbatch --reservation)")
    mail_user: Mail | None = Field(default=None, description="who gets mail (sbatch --mail-user); null: Slurm decides")
    mail_type: list[Event] = Field(default=[], description="events that send mail (sbatch --mail-type)")
    partitions: list[Partition] = Field(
        default=[], description="kinds of nodes; a job uses the first that it fits into"
    )
    limits: Limits = Field(default=Limits(), description="what one user may have at once on the whole cluster")
    price: Price = Field(default=Price(), description="what an hour costs, for the plan and the answer")
    min_minutes: Natural | None = Field(
        default=None,
        description="shortest job that the cluster wants, in minutes: the plan warns of shorter ones, and preflights "
        "ask for as much; null: not known",
    )
    gpu_request: GpuRequest = Field(
        default="gpus-per-node",
        description="how jobs ask for GPUs: --gpus-per-node=type:N, or --gres=gpu:type:N where the cluster wants that",
    )
    cpus_per_gpu: Natural | None = Field(
        default=None,
        description="CPUs asked for with each GPU where a comparison does not name a number; null: a GPU's "
        "even share of its node",
    )
    memory_mb_per_gpu: Natural | None = Field(
        default=None,
        description="memory asked for with each GPU, in MB; null: by memory_mb_per_cpu where that is given, else "
        "the GPU's even share of its node",
    )
    memory_mb_per_cpu: Natural = Field(default=2000, description="memory asked for with each CPU, in MB")
    confines_cpus: bool = Field(
        default=False,
        description="whether the cluster limits jobs to their CPUs and GPUs (cgroups); true: jobs check that it does",
    )
    nvidia_driver: Driver | None = Field(
        default=None,
        description="oldest version of NVIDIA's driver on the nodes, such as 550.54 (`nvidia-smi` shows it); null: not "
        "known before a preflight",
    )
    node_disk: Disk = Field(
        default="/tmp", description="folder on the node's own disk; variables are expanded inside the job"
    )
    network_interface: Interface | None = Field(
        default=None,
        description="interface between nodes (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME); null: NCCL and gloo choose",
    )
    openmp: OpenMP = Field(default=OpenMP(), description="placement of threads")
    modules: list[Module] = Field(
        default=[],
        description="environment modules that jobs load, in this order; with mode: conda, those that provide `conda`",
    )
    stack_modules: dict[Annotated[str, one_of(*STACKS, "libtorch")], list[Module]] = Field(
        default={},
        description="environment modules that the jobs of a stack load after these: {stack: [modules]}, such as CUDA "
        "for deepspeed; under `libtorch` those of the C++ program's job",
    )
    environment: Environment = Field(default=Environment(), description="where a job's packages come from")
    torch_cuda_arch_list: Capabilities | None = Field(
        default=None,
        description="what CUDA code that is built for this cluster is for (TORCH_CUDA_ARCH_LIST): compute capabilities "
        "such as 8.0;9.0; null: those of the partitions' GPUs",
    )
    libtorch: LibTorch = Field(default=LibTorch(), description="how the C++ program is built")

    _file: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Check keys that depend on each other."""
        if lines := [*contradictions(self)]:
            raise refused("\n".join(lines))
        return self

    @property
    def torch_build(self) -> str:
        """The build of torch: cpu, or one of `relay.spec.cuda`. `auto` is decided here."""
        if self.environment.torch != "auto":
            return self.environment.torch
        gpus = [p.generation for p in self.partitions if p.device == "cuda"]
        return (cuda.chosen(gpus, self.nvidia_driver) or "cuda") if gpus else "cpu"

    @property
    def cuda_arch_list(self) -> str | None:
        """What CUDA code is built for, as TORCH_CUDA_ARCH_LIST takes it; None where nothing tells."""
        gpus = [(p.gpu_name, p.generation) for p in self.partitions if p.device == "cuda"]
        build = self.torch_build if self.environment.wheels_from == "download" else None
        return self.torch_cuda_arch_list or ";".join(cuda.capabilities(gpus, build)) or None

    @property
    def file(self) -> str:
        """The file that the site was read from, as messages show it."""
        return self._file or f"site {self.name}"

    def partition_for(
        self, device: str, gpus_per_node: int, nodes: int, minutes: int, *, cpus_per_node: int = 1, memory_mb: int = 0
    ) -> tuple[Partition | None, str]:
        """The first partition that a job fits into and '', or None and the reason.

        `device` is cpu or cuda. `gpus_per_node` (0 for cpu), `cpus_per_node` and `memory_mb` are per node.
        Where the job fits except for its `minutes`, the first such partition is returned, and `missing` reports it.
        """
        kind = self._of_device(device)
        if not kind:
            return None, f"{self.file}: partitions: none for device {device}; add one"
        misfits = [self._misfit(p, nodes, gpus_per_node, cpus_per_node, memory_mb) for p in kind]
        fitting = [p for p, misfit in zip(kind, misfits, strict=True) if not misfit]
        if not fitting:
            return None, f"{self.file}: no partition fits: {'; '.join(misfits)}"
        return next((p for p in fitting if (p.max_minutes or minutes) >= minutes), fitting[0]), ""

    def time_limits(self, device: str, gpus_per_node: int, nodes: int, *, cpus_per_node: int = 1) -> list[int]:
        """The longest jobs, in minutes, of each partition that a job fits into and whose limit is known."""
        job = (nodes, gpus_per_node, cpus_per_node, 0)
        return [p.max_minutes for p in self._of_device(device) if p.max_minutes and not self._misfit(p, *job)]

    def _of_device(self, device: str) -> list[Partition]:
        return [p for p in self.partitions if p.device == device]

    def _misfit(self, p: Partition, nodes: int, gpus_per_node: int, cpus_per_node: int, memory_mb: int) -> str:
        """What a job asks for beyond the partition and beyond a user's limits; '' where it fits."""
        over = p.misfit(nodes, gpus_per_node, cpus_per_node, memory_mb)
        if self.limits.confirmed:
            over += self.limits.exceeded(p.taken(nodes, gpus_per_node, cpus_per_node))
        return f"{p.shown}: {', '.join(dict.fromkeys(over))}" if over else ""

    def memory_mb(self, gpus_per_node: int, cpus_per_node: int, partition: Partition | None = None) -> int:
        """Memory to ask for on a node, in MB: by GPUs where the site has `memory_mb_per_gpu`, else by CPUs.

        Where it names neither, a GPU has its even share of its node's. By CPUs, each GPU counts at least its share of
        the CPUs, because a process on a GPU needs memory even if it asks for few. The result is at most a node's
        memory: sites often round their shares up.
        """
        most = partition.memory_mb_per_node if partition else None
        per_gpu = self.memory_mb_per_gpu or 0
        if not per_gpu and partition and most and gpus_per_node and "memory_mb_per_cpu" not in self.model_fields_set:
            per_gpu = most // partition.gpus_per_node
        cpus = max(cpus_per_node, gpus_per_node * (self.cores_per_gpu or 1))
        share = gpus_per_node * per_gpu or cpus * self.memory_mb_per_cpu
        return min(share, most) if most else share

    @property
    def cores_per_gpu(self) -> int | None:
        """The CPUs that go with a GPU here: `cpus_per_gpu`, or the least even share of a node's; None without GPUs."""
        shares = [p.cpus_per_node // p.gpus_per_node for p in self.partitions if p.gpus_per_node]
        return self.cpus_per_gpu or min(shares, default=None)

    def missing(self, minutes: int, used: Iterable[Partition] | None = None) -> list[str]:
        """What must be filled in or corrected before jobs can be submitted, one line for each thing.

        `minutes` is the jobs' time limit. `used` are the partitions of the jobs; by default all partitions.
        """
        lines = []
        if self.account_required and not self.account:
            lines.append(f"{self.file}: account: missing; this cluster charges one: set the account that you may use")
        if not self.partitions:
            lines.append(f"{self.file}: partitions: missing; add at least one (`sinfo` lists them)")
        for p in dict.fromkeys(self.partitions if used is None else used):
            if p.max_minutes is None:
                remedy = f"set it (`sinfo -o '%P %l'` shows it; {minutes} is needed)"
                lines.append(f"{self.file}: max_minutes of {p.shown}: missing; {remedy}")
            elif minutes > p.max_minutes:
                remedy = f"lower it, or use another partition ({self.file})"
                lines.append(f"config: runtime_minutes: {minutes} is over the {p.max_minutes} of {p.shown}; {remedy}")
        return lines


def names(root: Path) -> list[str]:
    """The names of the ready sites of the project in `root`."""
    return sorted(file.stem for file in (root / SITES).glob("*.yaml"))


def leave_to_slurm(site: Site, environment: MutableMapping[str, str]) -> None:
    """Keep Snakemake's executor from naming a partition where the site leaves the choice to Slurm.

    The executor asks `sinfo` for the default partition. A filter in `environment` makes `sinfo` name none. With a named
    partition, a cluster that chooses by a job's size would send GPU jobs to nodes without GPUs.
    """
    if any(p.name is None for p in site.partitions):
        environment["SINFO_PARTITION"] = "none"


def site_of(default_resources: Mapping[str, Any]) -> str | None:
    """The site that a profile names with the default resource `site`, or None.

    `default_resources` is Snakemake's `workflow.resource_settings._parsed_default_resources`. Its values are Python
    expressions, so that a text may be quoted.
    """
    # `get` is of no use here: for a missing key, Snakemake's mapping returns an empty resource.
    return str(default_resources["site"].raw).strip("'\"") if "site" in default_resources else None


def load_site(name_or_path: str, root: Path) -> Site:
    """A ready site by its name, or a site's file by its path, which has a slash or ends in .yaml.

    A relative path starts at the working directory. Raises UserError with one line for each mistake: the file, the key,
    its value, and what is allowed.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        file, shown = Path(name_or_path).expanduser(), name_or_path
    elif name_or_path in names(root):
        file, shown = root / SITES / f"{name_or_path}.yaml", f"{SITES}/{name_or_path}.yaml"
    else:
        refusal = unknown(f"site: {show(name_or_path)} is unknown", name_or_path, names(root))
        raise UserError(f"{refusal}, or the path of a file of your own")
    return read_from(validated(Site, yaml_file.read_block(file, shown), shown, {}), shown)


def read_from(site: Site, shown: str) -> Site:
    """The site with its file's name, as messages show it."""
    site._file = shown
    return site
