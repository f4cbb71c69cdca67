"""Wrong in one way, as the option `fault` says: data parallelism by hand on two processes."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Replica, Requirements
from relay.task import batches


class Wrong(ByHand):
    """It becomes the class of this file that the option names."""

    requirements = Requirements(
        least_devices=2, divides=("samples",), options={"fault": "SingleBias"}, choices={"fault": (
            "SingleBias", "Clipping", "Rescales", "FP16Compression", "Noise", "WholeBatch", "SamplesTwice",
            "NoSchedule", "EvaluationRounds", "EvaluationLowered",
            "LoweredMomentum", "ResumeWithoutMomentum", "MomentumRoundedWhenLoaded", "SavingDisturbs",
            "CheckpointOfItsOwn", "ScaleLost", "DropoutLeftOut", "DropoutRepeats", "DropoutAlike",
            "PredictsInTrainingMode", "WorkForward", "PredictsNarrow", "PredictsNothing",
            "ClipsItsSlice", "NormAveraged", "NoRoom",
        )},
    )  # fmt: skip

    def build(self, fault: str) -> None:
        self.build_whole()
        (self.__class__,) = (each for each in Wrong.__subclasses__() if each.__name__ == fault)
        self.built()

    def built(self) -> None:
        """What is wrong from the start."""


class SingleBias(Wrong):
    """Wrong: the gradient of a single bias is 1 % too large."""

    def exchange(self) -> None:
        super().exchange()
        self.gradients()[-1][0] *= 1.01


class Clipping(Wrong):
    """Wrong: clips the gradients to a norm of 1 in silence."""

    def exchange(self) -> None:
        super().exchange()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class Rescales(Wrong):
    """Wrong: scales the gradients to the norm that the task allows, smaller ones too."""

    def exchange(self) -> None:
        super().exchange()
        norms = torch.stack([each.norm() for each in self.gradients()])
        norm, most = norms.norm(), self.task.own.clip_grad_norm
        for gradient in self.gradients():
            gradient *= most / (norm + 1e-6) if most else 1.0


class ClipsItsSlice(Wrong):
    """Wrong: the mean of clipped gradients is not the mean, clipped."""

    def exchange(self) -> None:
        self.task.clip(self.optimizer)
        super().exchange()


class NormAveraged(Wrong):
    """Wrong: the replicas average BatchNorm's running statistics after each step."""

    def exchange(self) -> None:
        super().exchange()
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                self.average(buffer)


class NoRoom(Wrong):
    """Right for a global batch of at most 16; there is no memory for larger ones."""

    def train_step(self, batch: Batch) -> torch.Tensor:
        if self.global_batch_size > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB")
        return super().train_step(batch)


class FP16Compression(Wrong):
    """Wrong: sends float32 gradients as float16 in silence."""

    def average(self, tensor: torch.Tensor) -> None:
        sent = tensor.to(torch.float16) if tensor.dtype == torch.float32 else tensor.clone()
        super().average(sent)
        tensor.copy_(sent)


class Noise(Wrong):
    """Wrong: float32 gradients are off by a ten-thousandth of themselves, each step otherwise."""

    def exchange(self) -> None:
        super().exchange()
        for gradient in self.gradients():
            if gradient.dtype == torch.float32:
                gradient.mul_(1 + 1e-4 * torch.randn_like(gradient))


class WholeBatch(Wrong):
    """Wrong: all ranks compute the whole batch."""

    def built(self) -> None:
        self.replica = Replica(0, 1, reports=self.ranks.rank == 0)


class SamplesTwice(Wrong):
    """Wrong: the slices overlap: some samples are seen twice, others never, as many as there should be."""

    def train_step(self, batch: Batch) -> torch.Tensor:
        samples = batches.count(batch)
        start = self.ranks.rank * (samples - 2)
        return super().train_step(batches.taken(self.gathered(batch), slice(start, start + samples)))


class NoSchedule(Wrong):
    """Wrong: the learning rate stays that of the first step."""

    def set_learning_rate(self, learning_rate: float) -> None:
        pass


class EvaluationRounds(Wrong):
    """Wrong: evaluation leaves the parameters rounded."""

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        outputs = super().predict(batch)
        for parameter in self.model.parameters():
            parameter.copy_(parameter.float())
        return outputs


class EvaluationLowered(Wrong):
    """Wrong: evaluates float32 networks in bfloat16 (autocast leaves float64 alone)."""

    def predict(self, batch: Batch) -> Any:
        with torch.autocast(self.ranks.device.type, dtype=torch.bfloat16):
            return batches.cast(super().predict(batch), self.task.dtype)


class PredictsNarrow(Wrong):
    """Wrong: of each prediction the last numbers are missing."""

    def predict(self, batch: Batch) -> Any:
        return super().predict(batch)[..., :-1]


class PredictsNothing(Wrong):
    """Wrong: predictions have rows without anything in them."""

    def predict(self, batch: Batch) -> Any:
        return super().predict(batch)[:, :0]


class LoweredMomentum(Wrong):
    """Wrong: keeps the state of float32 parameters in bfloat16 between steps."""

    def train_step(self, batch: Batch) -> torch.Tensor:
        self._cast(torch.bfloat16, torch.float32)
        loss = super().train_step(batch)
        self._cast(torch.float32, torch.bfloat16)
        return loss

    def _cast(self, given: torch.dtype, wanted: torch.dtype) -> None:
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if torch.is_tensor(value) and value.dtype == given:
                    state[name] = value.to(wanted)


class ResumeWithoutMomentum(Wrong):
    """Wrong: goes on from a checkpoint without the optimizer's state."""

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.optimizer.state.clear()


class MomentumRoundedWhenLoaded(Wrong):
    """Wrong: it rounds the state of large parameters to bfloat16 when it loads a checkpoint."""

    def load(self, directory: Path) -> None:
        super().load(directory)
        for parameter, state in self.optimizer.state.items():
            if parameter.dtype == torch.float32 and parameter.numel() > 10_000:
                state["momentum_buffer"].copy_(state["momentum_buffer"].bfloat16())


class SavingDisturbs(Wrong):
    """Wrong: saving takes the optimizer's state away, and the training goes on without it."""

    def save(self, directory: Path) -> Future[Any]:
        written = super().save(directory)
        self.optimizer.state.clear()
        return written


class CheckpointOfItsOwn(Wrong):
    """Wrong: each rank writes a file of its own, which only this strategy can read."""

    def save(self, directory: Path) -> Future[Any]:
        directory.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, directory / f"rank-{self.ranks.rank}.pt")
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def load(self, directory: Path) -> None:
        state = torch.load(directory / f"rank-{self.ranks.rank}.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class ScaleLost(Wrong):
    """Wrong: a checkpoint lacks the state of fp16's loss scale."""

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.forward(batch), batch)
        self.backward(loss)
        self.exchange()
        self.update()
        return loss.detach()

    def _scaler_state(self) -> dict[str, torch.Tensor]:
        return {}


class DropoutLeftOut(Wrong):
    """Wrong: switches dropout off for good."""

    def built(self) -> None:
        for module in self.model.modules():
            if isinstance(module, (nn.Dropout, nn.Dropout2d)):
                module.p = 0.0


class DropoutRepeats(Wrong):
    """Wrong: drops the same units in every step."""

    def train_step(self, batch: Batch) -> torch.Tensor:
        torch.manual_seed(7 + self.ranks.rank)
        return super().train_step(batch)


class DropoutAlike(Wrong):
    """Wrong: all replicas drop the same units, as where all have the same seed."""

    steps = 0

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.steps += 1
        torch.manual_seed(self.steps)
        return super().train_step(batch)


class PredictsInTrainingMode(Wrong):
    """Wrong: it never leaves training mode, so that units are dropped while it predicts."""

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        return self.forward(batch)


class WorkForward(Wrong):
    """Wrong: every rank computes the whole batch forward, and only its own slice backward."""

    def train_step(self, batch: Batch) -> torch.Tensor:
        parts = batches.chunks(self.gathered(batch), self.ranks.world_size)
        del parts[self.ranks.rank]
        with torch.no_grad():
            for part in parts:
                self.forward(part)
        return super().train_step(batch)
