"""Does a strategy divide the work as it says: samples, bytes held, bytes sent? One that does not is not parallel."""

from __future__ import annotations

from collections.abc import Sequence

from relay import strategies
from relay.equivalence.course import Seen
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import Trial
from relay.equivalence.verdict import Verdict
from relay.equivalence.work import Shares, undivided
from relay.spec.requirements import DIVISIBLE
from relay.spec.run import Training

# Of what is divided, no rank may hold this much: a whole is no part. A stage may: stages are cut by time, and LeNet's
# first convolution, which costs as much as all else, leaves 99.3 % of the parameters to the rest.
WHOLE_SHARE, NEARLY_ALL = 0.95, 0.995
# A rank that takes part in averaging gradients sends at least about the size of those it holds.
LEAST_SENT_SHARE = 0.1
# One that shares a replica with others exchanges activations: at the very least a number for each sample.
LEAST_SENT_BYTES_PER_SAMPLE = 4


def divided(
    verdict: Verdict,
    run: Training,
    trial: Trial,
    observed: Sequence[Seen],
    data: TrialData,
    footprint: dict[str, int],
) -> None:
    """Check that the work is divided as the strategy says: samples, bytes held, bytes sent.

    `footprint` is what one process holds.
    """
    replicas = observed[0].replica.count
    reporting = [seen for seen in observed if seen.replica.reports]
    if sorted(seen.replica.index for seen in reporting) != list(range(replicas)):
        verdict.problems.append("division of work: not exactly one process reports for each replica")
    verdict.problems += _samples(trial.steps, [seen.samples for seen in reporting], data)[:1]
    per_step = [sum(map(len, seen.samples)) / trial.steps for seen in observed]
    verdict.figures["samples_per_rank"] = per_step
    shares = {kind: [seen.footprint[kind] / whole for seen in observed] for kind, whole in footprint.items() if whole}
    verdict.figures["bytes_held_share"] = {kind: [round(share, 4) for share in held] for kind, held in shares.items()}
    used = [(rank, gpu, count) for rank, seen in enumerate(observed) for gpu, count in enumerate(seen.used_bytes)]
    idle = [(rank, gpu) for rank, gpu, count in used if count <= 0]
    verdict.problems += [f"division of work: rank {rank} left its GPU {gpu} unused" for rank, gpu in idle[:1]]
    if len(observed) > 1:
        samples = {"samples": [count / run.batch.global_batch_size for count in per_step]}
        verdict.problems += _undivided(run.strategy.divides, samples | shares, replicas, staged=_staged(run))
        if replicas > 1:
            least = [LEAST_SENT_SHARE * seen.footprint["gradients"] for seen in observed]
        else:
            least = [LEAST_SENT_BYTES_PER_SAMPLE * run.batch.global_batch_size for _ in observed]
        _communication(verdict, run, trial, [seen.bytes_sent for seen in observed], least)


def computed(
    verdict: Verdict,
    run: Training,
    observed: Sequence[Seen],
    whole: Sequence[tuple[float, float]],
    optimizer_bytes: int,
    slices: Sequence[Sequence[tuple[int, int]]] = (),
) -> None:
    """Check that each rank computes its part.

    `whole` are the operations of each step, all and forward, and `optimizer_bytes` the state, of one plain process.
    `slices` are those of each replica's slice by itself; where they are not known, each costs the same.
    """
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
        shares = [[mine / total for mine, _ in each] for each, (total, _) in zip(slices, whole, strict=False)]
        replicas = [seen.replica for seen in observed]
        problems, notes = undivided(replicas, steps, held, shares, uneven=uneven, staged=_staged(run))
        verdict.problems += problems
        verdict.notes += notes


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
