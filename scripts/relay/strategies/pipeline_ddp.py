"""Several pipelines: each computes a slice of the batch, and the same stages of all pipelines average gradients."""

from relay.spec.run import Setting
from relay.strategies._sharded import REPLICATES, replicated
from relay.strategies._stage import Stage
from relay.strategies.base import Requirements
from relay.strategies.pipeline import Pipeline


def sendable(setting: Setting, group: int, stages: int) -> str | None:
    """torch sends no numbers of 16 bits over MPI."""
    precision = setting.computation.precision
    if setting.shape.backend != "mpi" or precision not in ("bf16", "fp16"):
        return None
    return f"the layers' outputs in precision {precision} cannot be sent over backend mpi; use nccl or gloo"


class PipelineDDP(Pipeline):
    """Each pipeline has `stages` neighbouring ranks, so that it lies within one node if a node has enough ranks."""

    requirements = Requirements(
        least_torch="2.8",  # it uses FSDP, which 2.5 has for GPUs alone
        least_devices=4,
        backends=("gloo", "nccl", "mpi"),
        group="stages",
        needs=("layers", "cuts", "groups", "all_parameters", "sendable", "unconditional"),
        divides=("samples", "parameters", "gradients", "optimizer"),
        options={"stages": 2, "schedule": "1f1b", "micro_batches": 4, "cut_before": ""},
        pipelined=True,
        least={"stages": 2},
    )

    def build(self, stages: int, schedule: str, micro_batches: int, cut_before: str) -> None:
        sizes = (self.ranks.world_size // stages, stages)
        mesh = self.ranks.mesh(*sizes, names=("data", "pipeline"))
        self.data, self.group = mesh["data"], mesh["pipeline"].get_group()
        self.replicas = self.data
        if not REPLICATES:
            self.replicas = self.ranks.mesh(*sizes, 1, names=("data", "pipeline", "one"))["data", "one"]
        replica, first = self.data.get_local_rank(), self.ranks.rank // stages * stages
        self.lay(range(first, first + stages), schedule, micro_batches, cut_before, replica, self.data.size())

    def wrap(self, stage: Stage) -> None:
        # DistributedDataParallel does not work here. It fails at GPipe's several backward passes, and with
        # static_graph=True it continues with gradients that were never averaged.
        replicated(stage, self.replicas)
