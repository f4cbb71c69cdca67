"""Does a strategy divide the work as it says: samples, bytes held, bytes sent, operations?

Samples' ids show what reaches the loss. They do not show who computed it: each rank could compute the whole batch, or
one rank all of it. So the operations of each rank are counted, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from relay import strategies
from relay.base.grouped import gathered
from relay.equivalence.course import Observed
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import Trial
from relay.equivalence.verdict import Verdict
from relay.spec.requirements import DIVISIBLE
from relay.spec.run import Training
from relay.strategies.base import Replica

# Of what is divided, no rank may hold this much: a whole is no part. A stage may: stages are cut by time, and LeNet's
# first convolution, which costs as much as all else, leaves 99.3 % of the parameters to the rest.
WHOLE_SHARE, NEARLY_ALL = 0.95, 0.995
# A rank that takes part in averaging gradients sends at least about the size of those it holds.
LEAST_SENT_SHARE = 0.1
# One that shares a replica with others exchanges activations: at the very least a number for each sample.
LEAST_SENT_BYTES_PER_SAMPLE = 4
# A rank that computes a slice by itself does as much as one process does for the slice. In the backward pass it may
# compute layers again (activation checkpointing), which makes a third more of the whole.
MOST_FORWARD, MOST_TOTAL, LEAST_TOTAL = 1.25, 1.5, 0.75
# A rank with so much of the work leaves nothing to the others of its replica. A stage of a pipeline may have nearly
# all: stages are cut by time, and one layer of a network can cost more than all others. Behind a small LSTM, the matrix
# that gives two classes has 0.04 % of the operations.
ALL_BUT_NOTHING = 0.999
# What a rank may hold of the optimizer's state where another one keeps it for all.
NO_STATE = 0.05


def divided(
    verdict: Verdict, trial: Trial, observed: Sequence[Observed], data: TrialData, footprint: dict[str, int]
) -> None:
    """Check that the work is divided as the strategy says: samples, bytes held, bytes sent.

    `footprint` is what one process holds.
    """
    run, replicas = data.run, observed[0].replica.count
    reporting = [seen for seen in observed if seen.replica.reports]
    if sorted(seen.replica.index for seen in reporting) != list(range(replicas)):
        verdict.problems.append("division of work: not exactly one process reports for each replica")
    verdict.problems += _samples(trial.steps, [seen.samples for seen in reporting], data)[:1]
    per_step = [sum(map(len, seen.samples)) / trial.steps for seen in observed]
    verdict.figures["samples_per_rank"] = per_step
    shares = {kind: [seen.footprint[kind] / whole for seen in observed] for kind, whole in footprint.items() if whole}
    verdict.figures["bytes_held_share"] = {kind: [round(share, 4) for share in held] for kind, held in shares.items()}
    idle = [(rank, gpu) for rank, seen in enumerate(observed) for gpu, used in enumerate(seen.used_bytes) if used <= 0]
    verdict.problems += [f"division of work: rank {rank} left its GPU {gpu} unused" for rank, gpu in idle[:1]]
    if len(observed) > 1:
        samples = {"samples": [count / run.batch.global_batch_size for count in per_step]}
        verdict.problems += _undivided(run.strategy.divides, samples | shares, replicas, staged=_staged(run))
        if replicas > 1:
            least = [LEAST_SENT_SHARE * seen.footprint["gradients"] for seen in observed]
        else:
            least = [LEAST_SENT_BYTES_PER_SAMPLE * run.batch.global_batch_size for _ in observed]
        _communication(verdict, run, trial, [seen.bytes_sent for seen in observed], least)


def _samples(steps: int, seen: list[list[list[int]]], data: TrialData) -> list[str]:
    """Steps whose samples at the loss, over all replicas, are not the global batch, each exactly once."""
    problems = []
    for step in range(steps):
        got = sorted(i for replica in seen for i in (replica[step] if step < len(replica) else ()))
        expected = sorted(data.indices(step).tolist())
        if got != expected:
            twice, missing = len(got) - len(set(got)), len(set(expected) - set(got))
            problems.append(
                f"division of work: step {step}: {len(got)} samples reached the loss, the global batch has "
                f"{len(expected)}: {twice} more than once, {missing} never"
            )
    return problems


def _staged(run: Training) -> bool:
    return strategies.load(run.strategy.name).requirements.staged


def _undivided(divides: tuple[str, ...], shares: dict[str, list[float]], replicas: int, *, staged: bool) -> list[str]:
    """What some rank has all of, though the strategy says that it is divided; or that nothing is, whatever it says.

    A stage may have nearly all: then nobody has it again, there are as many wholes as replicas, and each rank has some.
    """
    most = {kind: max(held) for kind, held in shares.items()}
    parts = {kind for kind, held in shares.items() if (staged and min(held) > 0) or most[kind] < NEARLY_ALL}
    once = {kind for kind in parts if sum(shares[kind]) < 1.01 * replicas}
    whole = {kind: share for kind, share in most.items() if share > WHOLE_SHARE and kind not in once}
    claimed = [kind for kind in DIVISIBLE if kind in divides and kind in whole]
    if not claimed and len(whole) == len(shares):
        return [f"division of work: nothing is divided: a rank has all {', '.join(whole)}"]
    return [f"division of work: {kind} should be divided, but a rank has {whole[kind]:.0%}" for kind in claimed]


def _communication(
    verdict: Verdict, run: Training, trial: Trial, bytes_sent: list[int | None], least: list[float]
) -> None:
    """Check that every rank sent at least so much in a step; what NCCL sends passes no TCP counter."""
    per_step = [round(count / trial.steps) for count in bytes_sent if count is not None]
    if len(per_step) < len(bytes_sent):
        verdict.notes.append("the kernel does not tell bytes sent: it is not shown that the ranks communicate")
        return
    verdict.figures["bytes_sent_per_step"] = per_step
    short = [rank for rank, count in enumerate(per_step) if count < least[rank]]
    if run.shape.backend == "gloo" and short:
        verdict.problems.append(
            f"division of work: rank {short[0]} sent {per_step[short[0]]} bytes a step; expected {least[short[0]]:.0f} "
            "or more"
        )


@dataclass(frozen=True)
class Shares:
    """A rank's operations in one step, as a part of those of one process for the whole batch."""

    total: float
    forward: float

    def __str__(self) -> str:
        return f"{self.total:.1%} (forward {self.forward:.1%}) of what one process computes for the whole batch"


def computed(
    verdict: Verdict,
    run: Training,
    observed: Sequence[Observed],
    slices: Sequence[Sequence[tuple[int, int]]],
    optimizer_bytes: int,
) -> None:
    """Check that each rank computes its part.

    `slices` are the operations of each step, all and forward, and `optimizer_bytes` the state, of one plain process;
    of each slice by itself, which is a replica's or a part of it.
    """
    whole = [tuple(map(sum, zip(*step, strict=True))) for step in slices]
    if not all(total for total, _ in whole):
        verdict.notes.append("the network has no matrix products: what each rank computes is not counted")
        return
    steps = [
        [Shares(mine / total, its_forward / forward) for mine, its_forward in done]
        for (total, forward), *done in zip(whole, *(seen.work for seen in observed), strict=False)  # one may end early
    ]
    verdict.figures["computed_share"] = [
        round(sum(shares[rank].total for shares in steps) / len(steps), 4) for rank in range(len(observed))
    ]
    if len(observed) > 1:
        held = [seen.footprint["optimizer"] / optimizer_bytes if optimizer_bytes else 0.0 for seen in observed]
        uneven = run.task.card.experts > 0 and "parameters" in run.strategy.divides
        replicas = [seen.replica for seen in observed]
        each, left = divmod(len(slices[0]), replicas[0].count)  # where some are left, replicas have other slices
        shares = [
            [sum(total for total, _ in step[at : at + each]) / everything for at in range(0, len(step), each)]
            for step, (everything, _) in zip(slices, whole, strict=True)
            if not left
        ]
        problems, notes = undivided(replicas, steps, held, shares, uneven=uneven, staged=_staged(run))
        verdict.problems += problems
        verdict.notes += notes


def undivided(
    replicas: Sequence[Replica],
    steps: Sequence[Sequence[Shares]],
    optimizer_shares: Sequence[float],
    slice_shares: Sequence[Sequence[float]] = (),
    *,
    uneven: bool = False,
    staged: bool = False,
) -> tuple[list[str], list[str]]:
    """Problems and notes: ranks that compute more, or less, than their part.

    `replicas` and `optimizer_shares` (of the whole optimizer's state, what a rank holds) are by rank; `steps` has each
    step's shares by rank, and `slice_shares` what each replica's slice is of its step: texts that are padded to the
    longest of their slice do not all cost the same. A rank alone in its replica computes one slice; where the work is
    `uneven`, because samples choose which rank computes them (mixtures of experts), only the sum over all ranks is
    bounded. Ranks that share a replica compute a slice together; each does something, and none does all. Where they are
    `staged`, one may do all that is counted: a stage of embeddings or norms has no matrix products. Then each has to
    hold a part of the model.
    """
    keepers = _keepers(steps, optimizer_shares)
    groups = gathered((replica.index, rank) for rank, replica in enumerate(replicas) if rank not in keepers)
    notes = [f"rank {rank} computes no samples: it keeps the optimizer's state for the others" for rank in keepers]
    for step, shares in enumerate(steps):
        for index, group in groups.items():
            slice_share = slice_shares[step][index] if slice_shares else 1 / replicas[0].count
            if len(group) > 1:
                in_stages = staged and all(optimizer_shares[rank] > 0 for rank in group)
                problem = _shared(group, shares, slice_share, in_stages=in_stages)
            elif uneven:
                problem = _together(shares)
            else:
                problem = _alone(group[0], shares[group[0]], slice_share)
            if problem:
                return [f"division of work: step {step}: {problem}"], notes
    return [], notes


def _keepers(steps: Sequence[Sequence[Shares]], optimizer_shares: Sequence[float]) -> list[int]:
    """Ranks that never compute, and hold the optimizer's state for all that do: a parameter server's."""
    idle = [rank for rank in range(len(optimizer_shares)) if all(shares[rank].total == 0 for shares in steps)]
    others = [share for rank, share in enumerate(optimizer_shares) if rank not in idle]
    if not others or max(others) > NO_STATE:
        return []
    return [rank for rank in idle if optimizer_shares[rank] > NO_STATE]


def _alone(rank: int, mine: Shares, slice_share: float) -> str | None:
    """What is wrong with the work of a rank that computes its replica's slice by itself."""
    too_much = mine.forward > MOST_FORWARD * slice_share or mine.total > MOST_TOTAL * slice_share
    if not too_much and mine.total >= LEAST_TOTAL * slice_share:
        return None
    return f"rank {rank} computes {'' if too_much else 'only '}{mine}; its slice is {slice_share:.1%} of it"


def _together(shares: Sequence[Shares]) -> str | None:
    """What is wrong with the work of all ranks, which may divide it unevenly."""
    idle = [rank for rank, each in enumerate(shares) if each.total == 0]
    everything = Shares(sum(each.total for each in shares), sum(each.forward for each in shares))
    if idle:
        return f"rank {idle[0]} computes nothing"
    if everything.forward > MOST_FORWARD or everything.total > MOST_TOTAL:
        return f"all ranks together compute {everything}"
    return None


def _shared(group: Sequence[int], shares: Sequence[Shares], slice_share: float, *, in_stages: bool) -> str | None:
    """What is wrong with the work of ranks that compute a replica's slice together.

    One does more than the whole slice; or, unless they are stages, one does nothing, or all.
    """
    ranks = f"ranks {', '.join(map(str, group))}"
    for rank in group:
        if shares[rank].total > MOST_TOTAL * slice_share:
            return f"rank {rank} computes {shares[rank]}; {ranks} should share {slice_share:.1%} of it"
    if in_stages:
        return None
    for rank in group:
        if shares[rank].total == 0:
            return f"rank {rank} computes nothing; {ranks} should share a replica's work"
    for kind, what in (("forward", "the whole forward pass"), ("total", "everything")):
        parts = [getattr(shares[rank], kind) for rank in group]
        if max(parts) >= ALL_BUT_NOTHING * slice_share and (
            min(parts) >= ALL_BUT_NOTHING * slice_share or max(parts) >= ALL_BUT_NOTHING * sum(parts)
        ):
            return f"rank {group[parts.index(max(parts))]} computes {what} of its replica; {ranks} should share it"
    return None
