"""The training as a run does it: with dropout and BatchNorm, with evaluations, with a checkpoint that it goes on from.

The strategy trains first. Then one process repeats it without ever stopping, and compares.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from relay.equivalence import precision
from relay.equivalence.compared import (
    apart_by_rounding,
    compare,
    compared_draws,
    curve,
    moved_by_training,
    statistics_apart,
)
from relay.equivalence.course import AsTrained, Course, EndedEarlyError, Observed
from relay.equivalence.division import computed
from relay.equivalence.figures import most, scaled
from relay.equivalence.journey import travel
from relay.equivalence.plain import Plain, State
from relay.equivalence.repeated import Repeated
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import AS_TRAINED, BEFORE, EXACT, MOST_ROUNDING, SLOWDOWNS
from relay.equivalence.verdict import Compared, Part, Verdict
from relay.process.ranks import Ranks
from relay.strategies.base import Strategy

# Where rounding moves it even so, so many times as much is allowed. Beyond the largest limit nothing would be seen:
# statistics that replicas share, or that move with another momentum, are 1e-3 away or more.
ROUNDING_MARGIN, MOST_LIMIT = 100, 1e-4


def judge(verdict: Verdict, data: TrialData, folder: Path, ranks: Ranks, *, slowdown: int = 1) -> None:
    """Train as a run does, and compare all of it with a plain training. Collective; rank 0 judges.

    It is done in float64, and in the run's own precision, where `slowdown` divides the learning rate.
    `folder` is for checkpoints; all ranks see it. It is removed at the end.
    """
    if ranks.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    ranks.barrier()
    try:
        replicas = _as_trained(verdict, data, folder, ranks)
        if data.run.computation.precision != "fp64":
            precision.judge(verdict, data, folder / "own", ranks, replicas, slowdown=slowdown)
    except EndedEarlyError as ended:
        verdict.problems.append(f"as trained: {ended}")
    finally:
        if ranks.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _as_trained(verdict: Verdict, data: TrialData, folder: Path, ranks: Ranks) -> int:
    """At the first learning rate at which rounding leaves all to compare; BatchNorm of few samples is chaotic.

    Returns the number of replicas.
    """
    wrong = Verdict(data.run.id)  # what a further try at a smaller learning rate cannot excuse
    for slowdown in SLOWDOWNS:
        tried = Tried(Verdict(data.run.id))
        tried.train(data, folder / f"{slowdown}", ranks, slowdown)
        ranks.wait_for_files()  # rank 0 repeats it alone, up to three times
        if not ranks.gather(bool(tried.chaotic))[0] or slowdown == SLOWDOWNS[-1]:
            break
        wrong.tell(tried.verdict.others)
        wrong.tell(part.problem for part in tried.wrong)
    tried.judge()
    if slowdown > 1:
        tried.verdict.notes.append(f"as trained: the learning rate is divided by {slowdown}")
    verdict.take(tried.verdict)
    verdict.tell(wrong.problems)
    return tried.replicas


@dataclass
class Tried:
    """The training at one learning rate, with all comparisons; what follows is known on rank 0 alone.

    `rounding` is how far rounding alone moves each kind in which something differs, `moved` how far training moves it.
    """

    verdict: Verdict
    replicas: int = 1
    rounding: dict[Compared, float] = field(default_factory=dict)
    moved: dict[Compared, float] = field(default_factory=dict)

    @property
    def chaotic(self) -> list[Compared]:
        """The kinds that differ, and that rounding moves as well."""
        return [kind for kind, figure in self.rounding.items() if not figure <= MOST_ROUNDING["fp64"]]

    @property
    def wrong(self) -> list[Part]:
        """What differs and should not."""
        return [part for part in self.verdict.parts if not part.passed and part.compared not in self.chaotic]

    def train(self, data: TrialData, folder: Path, ranks: Ranks, slowdown: int) -> None:
        """Train, and compare. Collective."""
        verdict, run = self.verdict, data.run
        task = data.of_kind(AsTrained, replace(AS_TRAINED, slowdown=slowdown), data.across)
        first, second = (Course(data, ranks, task, counted=True) for _ in range(2))
        journey = travel(first, second, folder / "middle")
        self.replicas = first.strategy.replica.count
        second.strategy.save(folder / "end").result()
        ranks.barrier()
        alone = _alone(task, run.batch.global_batch_size, folder / "end", ranks)
        observed = journey.observed(verdict, ranks)
        if ranks.rank != 0:
            return
        repeated = _repeated(data, task, first.strategy, [seen for seen, _ in observed])
        compare(verdict, repeated, observed, journey.trained, journey.loaded.model, alone)
        if failed := sorted({part.compared for part in verdict.parts if not part.passed}):
            rounding, self.moved = apart_by_rounding(repeated), moved_by_training(repeated)
            self.rounding = {kind: rounding[kind] for kind in failed}
        verdict.problems += compared_draws(repeated, observed)
        slices = [*repeated.work, *repeated.work[BEFORE:]]
        done = [replace(second, work=first.work + second.work) for first, second in observed]
        computed(verdict, run, done, slices, sum(t.nbytes for t in repeated.end.optimizer.values()))

    def judge(self) -> None:
        """Allow a hundred times what rounding moves where training moves far more; else it is unprovable."""
        verdict, chaotic = self.verdict, self.chaotic
        if not chaotic:
            return
        parts = verdict.parts
        verdict.problems, verdict.parts, verdict.where = verdict.others, [], None
        for kind in chaotic:
            rounding = self.rounding[kind]
            allowed, reason = ROUNDING_MARGIN * rounding, f"rounding alone moves {kind} by {rounding:.0e}"
            if not allowed <= min(MOST_LIMIT, self.moved[kind] / ROUNDING_MARGIN):
                verdict.unprovable = f"{reason} in the trial 'as trained', in which BatchNorm and dropout work"
                parts = [part for part in parts if part.compared != kind]
                continue
            parts = [replace(part, limit=max(part.limit, allowed)) if part.compared == kind else part for part in parts]
            verdict.notes.append(f"as trained: {reason}, so that {allowed:.0e} is allowed in place of {EXACT:.0e}")
        for part in parts:
            verdict.add(part)


def _repeated(data: TrialData, task: AsTrained, strategy: Strategy, seen: Sequence[Observed]) -> Repeated:
    """The plain repetition: of replicas with statistics of their own, or with the first one's, whichever is nearer."""
    replicas, tried = strategy.replica.count, dict[float, Repeated]()
    for alike in (False, True) if replicas > 1 else (False,):
        repeated = Repeated(data, task, replicas, type(strategy).requirements, alike=alike)
        repeated.train()
        losses = scaled(curve(seen), torch.tensor(repeated.losses, dtype=torch.float64))
        apart = losses + most(statistics_apart(repeated, seen).values())  # a sum: losses may round alike
        tried.setdefault(apart, repeated)
        if apart <= EXACT:
            break
    return tried[min(tried)]


def _alone(task: AsTrained, global_batch_size: int, folder: Path, ranks: Ranks) -> State | str:
    """What one plain process loads from a checkpoint, or why it cannot; '' on all ranks but the first. Collective."""
    group = dist.new_group([0], backend="gloo")
    if ranks.rank != 0:
        return ""
    assert group is not None
    single = replace(ranks, rank=0, world_size=1, local_rank=0, control=group, saving=group)
    try:
        return State.of(Plain.read(task, single, global_batch_size, folder))
    except (Exception, CheckpointException) as error:  # torch's is none of Python's exceptions
        reason = getattr(error, "failures", {}).get(0, (error,))[0]
        return f"{type(reason).__name__}: {reason}".splitlines()[0]
    finally:
        dist.destroy_process_group(group)
