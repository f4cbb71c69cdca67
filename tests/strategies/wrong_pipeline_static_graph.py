"""Wrong: pipelines side by side whose stages average their gradients by DistributedDataParallel with a static graph.

It is silent: the reducer takes the first micro-batch's backward pass for all of a step's.
"""

from typing import Any

from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from relay.strategies._stage import Stage
from relay.strategies.base import Requirements
from relay.strategies.pipeline_ddp import PipelineDDP


class Within(nn.Module):
    """Around the wrapper: torch's schedules assert where they see it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *sent: Any) -> Any:
        return self.inner(*sent)


class PipelineStaticGraph(PipelineDDP):
    """Wrong: DistributedDataParallel with static_graph=True around the stages of a pipeline."""

    requirements = Requirements(
        least_devices=4,
        group="stages",
        needs=("layers",),
        divides=("samples", "parameters", "gradients", "optimizer"),
        options={"stages": 2, "schedule": "gpipe", "micro_batches": 4, "cut_before": ""},
    )

    def wrap(self, stage: Stage) -> None:
        pass

    def stage(self, index: int, module: nn.Module, part: Any) -> PipelineStage:
        wrapped = DistributedDataParallel(module, process_group=self.data.get_group(), static_graph=True)
        return super().stage(index, Within(wrapped), part)
