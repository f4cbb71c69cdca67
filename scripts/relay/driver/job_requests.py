"""What a call's jobs ask Slurm for, as resources of Snakemake's; and what is learnt of it while they run."""

from dataclasses import replace
from typing import Any

from relay.base.errors import NoNode, Unavailable, UserError
from relay.planning import handed
from relay.planning.plan import Plan
from relay.slurm import commands, shapes
from relay.slurm.requested import name_of
from relay.spec.run import Specification
from relay.spec.setting import Shape

MORE = 2  # times the memory of a job that was killed for it


class JobRequests:
    """The requests of a call that is under way. `plan` is the newest: a killed job makes another one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._left_out: dict[Shape, list[str]] = {}
        self._resources: dict[tuple[str, str], dict[str, Any]] = {}  # Snakemake asks for each resource by itself

    def resources(self, specification: Specification) -> dict[str, Any]:
        """What a specification's job asks Slurm for, and adds to a user's limits, as resources of Snakemake's."""
        name = (type(specification).__name__, specification.id)
        if name not in self._resources:
            job, site = self.plan.job(specification), self.plan.site
            assert job is not None, "only jobs on a cluster have resources"
            assert site is not None
            job = replace(job, memory_mb=self.plan.requests.memory_mb(specification, job))
            requested = shapes.resources(job, site, self._left_out.get(specification.shape, ()))
            self._resources[name] = requested | shapes.counted(specification.shape, site, self.plan.config)
        return self._resources[name]

    def more_memory(self, specification: Specification, had_mb: int) -> int | None:
        """What a job asks for that was killed with `had_mb` of memory on each node; as much where no node has more.

        None where no memory is asked for. All later jobs of its kind ask for it as well, also in later calls.
        """
        plan = self.plan
        if plan.site is None or not had_mb:
            return None
        partition, _ = shapes.partition_for(specification.shape, plan.site, plan.config)
        raised = plan.requests.raised.get(name_of(specification), 0)  # of another job of its kind, killed meanwhile
        wanted = raised if raised > had_mb else had_mb * MORE
        most = partition.memory_mb_per_node if partition else None
        more = min(wanted, most) if most else wanted
        if more > had_mb:
            self.plan = replace(plan, requests=plan.requests.more(specification, more))
            self._resources.clear()
            self.plan.requests.write(plan.results)
            # Not those of other repeats: they may be in the queue, with the memory that their files declare.
            handed.write(self.plan, only=specification)
        return max(more, had_mb)

    def leave_out(self, specification: Specification, node: str) -> bool:
        """Have jobs of this shape avoid a node for the rest of this call; False where no other nodes could take them.

        Not those of other shapes: they may need all nodes that there are.
        """
        if self.plan.site is None:
            return False
        job = self.plan.job(specification)
        assert job is not None
        nodes = [*self._left_out.get(specification.shape, ()), node]
        try:
            commands.expected_start(shapes.sbatch_flags(job, self.plan.site, nodes), job.partition)
        except (NoNode, Unavailable):  # it waits in the queue until others are back, or nobody can tell
            pass
        except UserError:
            return False
        self._left_out[specification.shape] = nodes
        self._resources.clear()
        return True
