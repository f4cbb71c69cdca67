"""What the ZeRO strategies share: DeepSpeed's engine wraps the model, and averages, divides and updates by itself.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
"""

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout

from relay.process.ranks import TIMEOUT
from relay.strategies import _deepspeed_library as library
from relay.strategies import _deepspeed_operations as operations
from relay.strategies._deepspeed_parts import Parts, WholeParameters
from relay.strategies.base import Batch, Strategy, regroup
from relay.task.modes import outside

# Of a bucket of gradients, or of gathered parameters: 1 MB or all of a small model, 16 MB of a large one.
LEAST_BUCKET_NUMBERS, MOST_BUCKET_NUMBERS = 2**18, 2**22
# A large model is updated in so many portions: for each, DeepSpeed copies the gradients, and Adam needs two copies.
UPDATES = 16


class ZeRO(Strategy):
    """A stage of ZeRO; a subclass says which one.

    `fused_adam` updates with DeepSpeed's FusedAdam in place of torch's Adam or AdamW.

    In low precision the network computes under autocast, as in every strategy. DeepSpeed keeps and averages all in
    float32.
    """

    stage: ClassVar[int]
    around_loss = WholeParameters
    adam: str | None = None  # the one of DeepSpeed's that takes the place of torch's Adam and AdamW

    def build(self, *, fused_adam: bool = False) -> None:
        self.adam = "FusedAdam" if fused_adam else self.adam
        with operations.built_where_missing():
            self._build()

    def _build(self) -> None:
        deepspeed, model = library.imported(self.ranks.device), self.task.model()
        sizes = [parameter.numel() for parameter in model.parameters()]
        part = min(max(sum(sizes) // UPDATES, LEAST_BUCKET_NUMBERS), MOST_BUCKET_NUMBERS)
        self.bucket = max(*sizes, min(sum(sizes), part))
        config = self.configuration(sum(sizes))
        if self.stage < 3:
            model.to(self.ranks.device)
        else:
            self.divide(deepspeed, model, config)
        optimizer = self.torch_optimizer(list(model.parameters()))
        updated = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        with library.in_type(self.task.dtype):
            self.engine = self.engine_of(deepspeed, model, optimizer, config)
        if self.stage == 3:
            library.keep_no_weights(self.engine)
            library.count_once(self.engine.optimizer)
        if self.task.dtype == torch.float64:
            library.keep_float64(self.engine)
        _set_pg_timeout(TIMEOUT, self.engine.seq_data_parallel_group)
        self.model, self.zero = model, self.engine.optimizer
        self.optimizer = self.zero.optimizer  # another Adagrad than the one that DeepSpeed was given
        self.module = self.engine
        self.parts = Parts(model, self.zero, updated, self.stage, self.ranks)
        self.gradient_bytes = 0

    def configuration(self, parameters: int) -> dict[str, Any]:
        """DeepSpeed's configuration, for that many parameters."""
        bucket = self.bucket + self.bucket % 2  # DeepSpeed wants an even number
        return {
            "train_batch_size": self.global_batch_size,
            "train_micro_batch_size_per_gpu": self.global_batch_size // self.ranks.world_size,
            "gradient_clipping": self.task.own.clip_grad_norm or 0.0,  # its own default would be 1.0
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": self.stage,
                "reduce_scatter": self.task.dtype != torch.float64,  # it refuses float64 there
                # Buckets of its default size take 2 GB, which it allocates again in every step.
                "reduce_bucket_size": bucket,
                "allgather_bucket_size": bucket,
                # Its default keeps parameters of less than 100,000 numbers whole on every rank.
                "stage3_param_persistence_threshold": 0,
                "sub_group_size": max(bucket, parameters // self.ranks.world_size // UPDATES),
                # As in FSDP, a layer is given up after its forward pass. By default all layers are kept for the
                # backward pass, up to a thousand million numbers.
                "stage3_max_reuse_distance": 0,
                "stage3_max_live_parameters": 2 * bucket,
                "stage3_prefetch_bucket_size": bucket,
                # It would replace `torch.nn.functional.linear` for good: see `keep_no_weights`.
                "memory_efficient_linear": False,
            },
        }

    def divide(self, deepspeed: Any, model: nn.Module, config: dict[str, Any]) -> None:
        """Divide the parameters of a model among the ranks, in place (stage 3)."""
        deepspeed.zero.Init(module=model, config_dict_or_path=config)

    def engine_of(
        self, deepspeed: Any, model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]
    ) -> Any:
        """DeepSpeed's engine around the model."""
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
        return engine

    def torch_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer that DeepSpeed is given. It puts its own flat parts into the parameters' place."""
        optimizer = self.task.optimizer(parameters)
        if self.stage < 3:
            portions = self._portions(parameters)
            regroup(optimizer, lambda parameter: portions[id(parameter)])
        return library.with_adam(self.adam, self.task, optimizer) if self.adam else optimizer

    def _portions(self, parameters: list[nn.Parameter]) -> dict[int, int]:
        """The number of each parameter's portion, by id: neighbours that stages 1 and 2 update at once."""
        least = max(self.bucket, sum(parameter.numel() for parameter in parameters) // UPDATES)
        portions, portion, held = {}, 0, 0
        for parameter in parameters:
            if held >= least:
                portion, held = portion + 1, 0
            portions[id(parameter)] = portion
            held += parameter.numel()
        return portions

    def train_step(self, batch: Batch) -> torch.Tensor:
        loss = self.in_parts(batch)
        self.update()
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        if self.scaler:  # it has no scale before it has scaled something; DeepSpeed scales the loss
            self.scaler.scale(loss.detach())
            self.zero.override_loss_scale(self.scaler.get_scale())
        self.engine.backward(loss)

    def update(self) -> None:
        """The optimizer's step. DeepSpeed leaves it out where a gradient is not finite, which lowers fp16's scale."""
        if not self.gradient_bytes:  # they are gone after the step
            self.gradient_bytes = self.parts.gradient_bytes()
        with outside():  # a smooth twin's functions are for the model, not for clipping
            self.engine.step()
        if self.scaler:
            overflow = torch.tensor(float(self.zero.overflow), device=self.ranks.device)
            self.scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"] = {overflow.device: overflow}
            self.scaler.update()

    def whole_model(self) -> dict[str, torch.Tensor]:
        whole, _ = self.parts.collect(parameters_to=0)
        return whole | {name: buffer.detach().cpu() for name, buffer in self._own_buffers().items()}

    def save(self, directory: Path) -> Future[Any]:
        """Begin to write the checkpoint that every strategy can load: each rank has a share of the whole tensors."""
        model, optimizer = self.parts.collect()
        return self.write(directory, {**model, **self._own_buffers()}, optimizer)

    def names_of_groups(self) -> list[list[str]]:
        names: list[list[str]] = [[] for _ in self.optimizer.param_groups]
        for piece, of_piece in self.parts.by_piece():
            names[self.zero.sub_group_to_group_id[piece] if self.stage == 3 else piece] += of_piece
        return names

    def load_training(self, directory: Path, saved: Mapping[str, Any]) -> None:
        """Read what any strategy has saved, at any number of processes. Collective."""
        self.parts.load(directory, saved)
        dcp.load({"model": self._own_buffers()}, checkpoint_id=directory, process_group=self.ranks.saving)

    def footprint(self) -> dict[str, int]:
        """Bytes that this rank holds. `masters` are copies of parameters, which the optimizer updates."""
        return {
            "parameters": self.parts.parameter_bytes(),
            "gradients": self.gradient_bytes,
            "optimizer": self.parts.optimizer_bytes(),
            "masters": self.parts.master_bytes(),
        }
