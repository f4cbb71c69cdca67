"""A kind of node in a cluster's file: what a job can have there, and what one user can have at once."""

from __future__ import annotations

from pydantic import Field

from relay.spec.blocks import Block, Natural, Text, Whole
from relay.spec.cuda import CAPABILITY, Generation, generation_of
from relay.spec.gpu_types import compute_capability
from relay.spec.setting import Device

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

    name: Text | None = Field(default=None, description="Slurm's name for the partition; null: Slurm chooses one")
    device: Device = Field(description="what its jobs compute on")
    gpu_name: Text | None = Field(default=None, description="GRES type of its GPUs, as `sinfo -o %G` shows; null: any")
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
