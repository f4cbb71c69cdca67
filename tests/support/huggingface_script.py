"""A small training by Hugging Face's Trainer, made a chain: `huggingface_script.py RESULT [STEP SIGNAL]`.

After the step, it sends itself the signal.
"""

import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from relay.chain import peers
from relay.chain.huggingface import ChainCallback

peers.AGREE_SECONDS = 0.0  # at each step, which takes a millisecond


class Net(nn.Module):
    """Takes what the Trainer's collator makes of the samples; draws random numbers in its dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


class Signals(TrainerCallback):
    """Sends this process a signal after a step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if len(sys.argv) > 2 and state.global_step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.Signals[sys.argv[3]])


def main() -> None:
    """Train, and write the model."""
    torch.manual_seed(0)
    samples = [{"inputs": torch.randn(4).tolist(), "labels": number % 2} for number in range(32)]
    strategy = os.environ.get("STRATEGY", "steps")
    evaluated: dict[str, Any] = {"eval_strategy": {"steps": "no", "epoch": "epoch", "best": "steps"}[strategy]}
    # The loss falls, so that none is better than the first.
    evaluated |= {"eval_steps": 3, "greater_is_better": True} if strategy == "best" else {}
    arguments = TrainingArguments(
        "checkpoints", per_device_train_batch_size=4, num_train_epochs=3, save_steps=3, save_total_limit=2,
        report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1000, seed=5, save_strategy=strategy,
        metric_for_best_model="loss" if strategy == "best" else None, **evaluated,
    )  # fmt: skip
    chain = ChainCallback()
    trainer = Trainer(
        model=Net(), args=arguments, train_dataset=samples, eval_dataset=samples[:8], callbacks=[chain, Signals()]
    )
    trainer.train(resume_from_checkpoint=chain.newest(trainer))
    torch.save(trainer.model.state_dict(), sys.argv[1])


if __name__ == "__main__":
    main()
