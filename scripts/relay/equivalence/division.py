"""Does a strategy divide the work as it says: samples, bytes held, bytes sent? One that does not is not parallel."""

from __future__ import annotations

from dataclasses import dataclass

from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import Trial
from relay.equivalence.verdict import Verdict
from relay.equivalence.work import Shares, undivided
from relay.process.ranks import Ranks
from relay.spec.requirements import DIVISIBLE
from relay.spec.run import Training
from relay.strategies.base import Strategy

# Of what is divided, no rank may hold this much: a whole is no part. A stage may, if not quite all: stages are cut by
# time, and LeNet's first convolution, which costs as much as all else, leaves 99.3 % of the parameters to the rest.
WHOLE_SHARE, NEARLY_ALL = 0.95, 0.995
# A rank that takes part in averaging gradients sends at least about the size of those it holds.
LEAST_SENT_SHARE = 0.1
# One that shares a replica with others exchanges activations: at the very least a number for each sample.
LEAST_SENT_BYTES_PER_SAMPLE = 4


@dataclass
class Trained:
    """What one rank saw of a trial."""

    losses: list[float]
    seen: list[list[int]]  # the samples that reached this rank's loss, for each step
    always_training: bool  # in training mode, where dropout is on, after each step
    bytes_sent: int | None  # None where the kernel does not tell
    footprint: dict[str, int]
    used_bytes: list[int]  # the most on each of its GPUs, beyond what it held before; empty on CPUs
    work: list[tuple[int, int]]  # operations in each step, all and forward; empty where they were not counted
    strategy: Strategy


def divided(verdict: Verdict, run: Training, trial: Trial, trained: Trained, data: TrialData, footprint: dict[str, int],
            ranks: Ranks) -> None:  # fmt: skip
    """Check that the work is divided as the strategy says: samples, bytes held, bytes sent. Collective."""
    replica = trained.strategy.replica
    told = ranks.gather((replica, trained.seen, trained.footprint, trained.bytes_sent, trained.used_bytes))
    if ranks.rank != 0:
        return
    reporting = [rank for rank in told if rank[0].reports]
    if sorted(rank[0].index for rank in reporting) != list(range(replica.count)):
        verdict.problems.append("division of work: not exactly one process reports for each replica")
    verdict.problems += _samples(trial.steps, [rank[1] for rank in reporting], data)[:1]
    per_step = [sum(map(len, rank[1])) / trial.steps for rank in told]
    verdict.figures["samples_per_rank"] = per_step
    shares = {kind: [round(rank[2][kind] / whole, 4) for rank in told] for kind, whole in footprint.items() if whole}
    verdict.figures["bytes_held_share"] = shares
    idle = [(rank, place) for rank, seen in enumerate(told) for place, used in enumerate(seen[4]) if used <= 0]
    verdict.problems += [f"division of work: rank {rank} left its GPU {place} unused" for rank, place in idle[:1]]
    if ranks.world_size > 1:
        samples = {"samples": [count / run.batch.global_batch_size for count in per_step]}
        verdict.problems += _undivided(run.strategy.divides, samples | shares, replica.count)
        if replica.count > 1:
            least = [LEAST_SENT_SHARE * rank[2]["gradients"] for rank in told]
        else:
            least = [LEAST_SENT_BYTES_PER_SAMPLE * run.batch.global_batch_size for _ in told]
        _communication(verdict, run, trial, [rank[3] for rank in told], least)


def computed(verdict: Verdict, run: Training, trained: Trained, per_sample: tuple[float, ...], ranks: Ranks) -> None:
    """Check that each rank computes its part of a batch of this size, not only of the small one. Collective.

    `per_sample` are the operations that one process computes for a sample: known to rank 0, which judges.
    """
    told = ranks.gather((trained.strategy.replica, trained.work, trained.footprint["optimizer"]))
    if not per_sample or ranks.world_size == 1:
        return
    total, forward = (each * run.batch.global_batch_size for each in per_sample)
    done = zip(*(rank[1] for rank in told), strict=False)  # a rank that ended early is told of elsewhere
    steps = [[Shares(each[0] / total, each[1] / forward) for each in step] for step in done]
    held = sum(rank[2] for rank in told)
    shares = [rank[2] / held if held else 0.0 for rank in told]
    uneven = run.task.experts > 0 and "parameters" in run.strategy.divides
    problems, _ = undivided([rank[0] for rank in told], steps, shares, uneven=uneven)
    verdict.problems += problems


def _undivided(divides: tuple[str, ...], shares: dict[str, list[float]], replicas: int) -> list[str]:
    """What some rank has all of, though the strategy says that it is divided; or that nothing is, whatever it says.

    A stage of a pipeline may have nearly all: then nobody has it again, and there are as many wholes as replicas.
    """
    most = {kind: max(held) for kind, held in shares.items()}
    once = {kind for kind, held in shares.items() if sum(held) < 1.01 * replicas and most[kind] < NEARLY_ALL}
    whole = {kind: share for kind, share in most.items() if share > WHOLE_SHARE and kind not in once}
    claimed = [kind for kind in DIVISIBLE if kind in divides and kind in whole]
    if not claimed and len(whole) == len(shares):
        return [f"division of work: nothing is divided: a rank has all {', '.join(whole)}"]
    return [f"division of work: {kind} should be divided, but a rank has {whole[kind]:.0%}" for kind in claimed]


def _communication(
    verdict: Verdict, run: Training, trial: Trial, bytes_sent: list[int | None], least: list[float]
) -> None:
    """Check that every rank sent at least so much in a step; what NCCL sends passes no TCP counter."""
    known = [round(count / trial.steps) for count in bytes_sent if count is not None]
    if len(known) < len(bytes_sent):
        verdict.notes.append("the kernel does not tell bytes sent: it is not shown that the ranks communicate")
        return
    verdict.figures["bytes_sent_per_step"] = known
    short = [rank for rank, count in enumerate(known) if count < least[rank]]
    if run.shape.backend == "gloo" and short:
        verdict.problems.append(
            f"division of work: rank {short[0]} sent {known[short[0]]} bytes a step; expected {least[short[0]]:.0f} "
            "or more"
        )


def _samples(steps: int, seen: list[list[list[int]]], data: TrialData) -> list[str]:
    """Steps whose samples at the loss, over all replicas, are not the global batch, each exactly once."""
    problems = []
    for step in range(steps):
        got, expected = (
            sorted(i for replica in seen for i in (replica[step] if step < len(replica) else ())),
            sorted(data.indices(step).tolist()),
        )
        if got != expected:
            twice, missing = len(got) - len(set(got)), len(set(expected) - set(got))
            problems.append(
                f"division of work: step {step}: {len(got)} samples reached the loss, the global batch has "
                f"{len(expected)}: {twice} more than once, {missing} never"
            )
    return problems
