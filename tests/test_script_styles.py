"""Scripts of other styles, measured as they stand, made chains by their few lines, and killed on the way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import stacks
from living import children, words
from script_runs import Commanded, commanded

pytest_plugins = ["huggingface"]

NANO = """
    # A loop in the style of small GPT trainings: an endless stream of blocks, printed every few iterations.
    import argparse, math, time
    import torch
    from torch import nn
    from torch.nn import functional as F
    from relay.chain import resume

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--tag", default="")
    args = parser.parse_args()
    torch.manual_seed(1337)
    text = torch.randint(0, 64, (10_000,), generator=torch.Generator().manual_seed(1))

    class GPT(nn.Module):
        def __init__(self, width=32, block=16):
            super().__init__()
            self.tokens, self.places = nn.Embedding(64, width), nn.Embedding(block, width)
            self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.1)
            self.head = nn.Linear(width, 64, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, index, targets):
            mask = nn.Transformer.generate_square_subsequent_mask(index.shape[1])
            hidden = self.tokens(index) + self.places(torch.arange(index.shape[1]))
            logits = self.head(self.block(hidden, src_mask=mask, is_causal=True))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def get_batch():
        starts = torch.randint(len(text) - 17, (args.batch_size,)).tolist()
        return (torch.stack([text[s + o : s + o + 16] for s in starts]) for o in (0, 1))

    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = resume(model=model, optimizer=optimizer, save_steps=20)
    while run.step < 120:
        started = time.time()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * run.step / 120))
        loss = model(*get_batch())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if run.step % 10 == 0:
            print(f"iter {run.step}: loss {loss.item():.4f}, time {(time.time() - started) * 1000:.2f}ms")
        time.sleep(0.03)
        run.after(run.step + 1)
    run.finish()
    torch.save(model.state_dict(), "end.pt")
"""
LIGHTNING = """
    import sys, time
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from relay.chain.lightning import ChainCallback

    class Net(LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))

        def training_step(self, batch, number):
            time.sleep(0.03)
            return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)

    seed_everything(3)
    data = TensorDataset(torch.randn(320, 8), torch.randint(0, 2, (320,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(4))
    chain = ChainCallback(save_steps=20)
    trainer = Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[chain])
    model = Net()
    trainer.fit(model, loader, ckpt_path=chain.newest(trainer))
    torch.save(model.state_dict(), "end.pt")
"""
HUGGINGFACE = """
    import os, time
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from relay.chain.huggingface import ChainCallback

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    samples = [{"input_ids": (ids := torch.randint(0, 64, (16,)).tolist()), "labels": ids} for _ in range(320)]
    arguments = TrainingArguments(
        "checkpoints", per_device_train_batch_size=8, num_train_epochs=3, save_steps=20, save_total_limit=2,
        report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=10, seed=5,
    )
    chain = ChainCallback()
    trainer = Trainer(model=model, args=arguments, train_dataset=samples, callbacks=[chain])
    trainer.train(resume_from_checkpoint=chain.newest(trainer))
    torch.save(model.state_dict(), "end.pt")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def killed_once(made: Commanded) -> None:
    """Run a chain to its end, killed by SIGKILL after its first checkpoint."""
    job = made.start()
    deadline = time.monotonic() + 200
    while job.poll() is None and not (made.places.work / "reached.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    for each in children(job.pid):
        if any(word.endswith("train.py") for word in words(each)):
            each.kill()
    printed, _ = job.communicate(timeout=200)
    assert job.returncode == 75, printed
    status, printed = made.run(attempt=2)
    assert status == 0, printed
    assert "goes on from step" in printed


def measured_and_killed(script: str, command: str, **comparison: Any) -> None:
    """A script is measured without a break, and with one: both end with the same bits."""
    found = []
    for tag in ("whole", "killed"):
        made = commanded(script, command, options={"tag": tag}, global_batch_size=8, **comparison)
        if tag == "whole":
            status, printed = made.run()
            assert status == 0, printed
        else:
            killed_once(made)
        summary = made.summary()
        assert (summary["steps_reached"], summary["attempts"]) == (120, 1 + (tag == "killed"))
        assert 0 < summary["samples_per_second"] < 8 / 0.005
        found.append(torch.load(made.folder / "end.pt", weights_only=True))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_loop_as_in_small_gpts() -> None:
    read = {"step": "iter {number}:", "loss": "loss {number}"}
    measured_and_killed(NANO, "python train.py --batch_size={global_batch_size} --tag={tag}", read=read)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_lightning_script() -> None:
    stacks.provide("lightning")
    measured_and_killed(LIGHTNING, "python train.py {tag}", stack="lightning")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_hugging_face_trainer(huggingface: Path) -> None:
    measured_and_killed(HUGGINGFACE, f"{huggingface} train.py {{tag}}")
