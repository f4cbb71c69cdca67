"""The process of a spot check: computes a few steps of each run again, and holds them against what the run recorded.

Started by the launcher: `python -m relay.launch.worker spot_check.process WORK --help`.
"""

import math
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch.distributed.checkpoint.api import CheckpointException

from relay.base import options
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.datasets.manifest import digest
from relay.equivalence.plain import Plain, State
from relay.process import cpus, machine
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder import run_chain
from relay.run_folder.places import Places, dataset_folder
from relay.run_folder.sound_checkpoints import damage
from relay.run_folder.spots import Spot, Spots, states_folder
from relay.spec.run import Run
from relay.spot_check import evaluated, stretch
from relay.spot_check.loop import Computed, Loop, Recorded
from relay.task.bound import AUTOCAST
from relay.training.summary import kept_losses

# How far rounding goes is seen by changing the parameters by one unit in the last place, or, where matrix products are
# rounded, by computing in fp32.
NOISE = {"fp64": 2.0**-52, "fp32": 2.0**-23}
# How much the bytes sent in a step may change in the course of a run: routing of tokens changes them a little, a
# compression to fp16 halves them. Fewer bytes are the control group's, and the kernel's.
MOST_BYTES_RATIO, LEAST_BYTES = 1.5, 20_000
# So many steps after a stretch have their losses compared, and at most this part of the run's steps: whatever begins
# when a state has been saved and two steps are over, or comes every few steps, shows there, and no state is needed.
MOST_FOLLOWING, FOLLOWING_SHARE = 8, 0.01
OVERFLOWN_TWICE = 2


class Unchecked(Exception):
    """Why a spot cannot be compared."""


class Check:
    """The check of one run."""

    def __init__(self, places: Places, ranks: Ranks) -> None:
        self.places, self.ranks = places, ranks
        self.run = Run.read(places.run / "run.json")
        self.folder, self.dataset = states_folder(places.work), dataset_folder(places.results, self.run.dataset)
        self.findings = stretch.Findings(self.run.id)
        self.overflown_alone = 0  # stretches

    def findings_of(self) -> stretch.Findings:
        """Check all that the run has kept. Raises UserError where the dataset is missing."""
        began = time.monotonic()
        if self.run.shape.device == "cpu":
            machine.compute_in(min(self.run.shape.cpus_per_node, len(cpus.granted())))
        chain = run_chain.read(self.places.work)
        self.findings.generation = chain.generation if chain else None
        spots = Spots.read(self.places.work)
        if spots is None or not spots.replicas:
            self.findings.unchecked.append(f"{self.folder} is gone, or damaged, or nothing was kept there")
            return self.findings
        try:
            self._check(spots)
        except UserError:
            raise
        except Exception as error:  # the other runs' checks go on
            traceback.print_exc()
            self.findings.broken = True
            self.findings.unchecked.append(f"the check failed: {type(error).__name__}: {error}")
        self.findings.seconds = round(time.monotonic() - began, 3)
        return self.findings

    def _check(self, spots: Spots) -> None:
        self.findings.saving_seconds = spots.seconds
        self.findings.unchecked += spots.missed
        if (trained := run_chain.dataset(self.places.work)) not in (None, here := digest(self.dataset)):
            self.findings.unchecked.append(f"its dataset was made anew with other content (then {trained}, now {here})")
            return
        losses = kept_losses(self.places.work)
        loop = Loop(self.run, self.dataset, self.ranks, self.folder, spots)
        for spot in dict.fromkeys(spots.spots):
            self._spot(spot, losses, loop)
        self._bytes(spots)

    def _spot(self, spot: Spot, losses: dict[int, float], loop: Loop) -> None:
        """Check one spot."""
        findings, where = self.findings, f"{spot.kind}, steps {spot.first + 1} to {spot.last}"
        figures: list[stretch.Figure] = []
        of_evaluation: list[stretch.Figure] = []
        try:
            for step in (spot.first, spot.last):
                if problem := damage(loop.state(step), generation=findings.generation):
                    raise Unchecked(problem)
            wanted = range(spot.first + 1, spot.last + 1)
            if missing := [step for step in wanted if step not in losses]:
                raise Unchecked(f"the loss of step {missing[0]} is not recorded")
            ended = loop.read(spot.last)
            statistics = loop.statistics(spot.last, ended)
            recorded = Recorded([losses[step] for step in wanted], State.of(ended), statistics)
            if spot.kind == "end":
                of_evaluation = self._evaluated(spot, loop, replace(ended, statistics=statistics))
            del ended  # the steps need the room of a model of their own
            if strays := loop.division.strays(spot):
                findings.problems.append(f"{where}: {strays}")
            further = self._following(spot, losses, normalised=bool(recorded.after.buffers))
            figures, notes = self._figures(spot, where, loop, recorded, [losses[step] for step in further])
            findings.notes += [f"{where}: {note}" for note in notes]
        except Unchecked as why:
            findings.unchecked.append(f"{where}: {why}")
        except CheckpointException as error:
            reason = " ".join(str(error).split())[:300]
            findings.problems.append(f"{where}: what the run saved cannot be read by one process: {reason}")
            return
        figures += of_evaluation
        if parts := [figure.as_dict() for figure in figures]:
            findings.spots.append({"kind": spot.kind, "first": spot.first, "last": spot.last, "parts": parts})
        findings.problems += [f"{where}: {figure.problem}" for figure in figures if not figure.passed]

    def _following(self, spot: Spot, losses: Mapping[int, float], *, normalised: bool) -> range:
        """The steps after a spot whose losses are compared, too."""
        # Rounding decides where a sum overflows, and which expert gets a token: losses then differ by a jump. They do
        # so, too, where BatchNorm normalises few samples.
        jumps = self.run.computation.precision == "fp16" or self.run.task.card.experts > 0 or normalised
        most = 0 if jumps else min(MOST_FOLLOWING, int(FOLLOWING_SHARE * self.run.length.total_steps))
        last = next((step for step in range(spot.last, spot.last + most) if step + 1 not in losses), spot.last + most)
        return range(spot.last + 1, last + 1) if not self.run.strategy.lossy else range(0)

    def _figures(
        self, spot: Spot, where: str, loop: Loop, recorded: Recorded, following: list[float]
    ) -> tuple[list[stretch.Figure], list[str]]:
        """The figures of a spot, and notes. Raises Unchecked."""
        declared, precision = self.run.computation.precision, loop.computed_in
        compute = partial(loop.compute, spot, following=len(following))
        differing_statistics = stretch.differing_statistics(recorded)
        # Replicas may begin each step with the first one's, as under DDP, or with their own.
        two_ways = differing_statistics or (self.run.task.card.buffers and loop.division.replicas > 1)
        tried = {alike: compute(alike=alike) for alike in ((False, True) if two_ways else (False,))}
        alike = min(tried, key=lambda alike: stretch.off(recorded, tried[alike]))
        plain = tried.pop(alike)
        tried.clear()  # each holds several copies of the model, on the device
        if not all(map(math.isfinite, [*plain.losses, *plain.followed])):
            wrong = "one plain process's loss is not finite there, the run recorded finite ones"
            self.findings.problems.append(f"{where}: {wrong}")
            return [], []
        if recorded.after.loss_scale != plain.after.loss_scale or plain.after.loss_scale < plain.before.loss_scale:
            self._overflown(where, recorded.after.loss_scale, plain.after.loss_scale)
            raise Unchecked("fp16 has overflowed in these steps: nothing is compared")
        if plain.before.buffers and not loop.division.is_known(spot):
            raise Unchecked(
                "how its slices were divided is not known, and BatchNorm depends on it: nothing is compared"
            )
        if plain.masks == "others":
            draws = [loop.compute(spot, seed=seed) for seed in range(stretch.DRAWS)]
            figures, notes = stretch.judged_of_draws(recorded, draws, precision)
            note = (
                f"its masks of dropout cannot be drawn again in one process: held against {stretch.DRAWS} other draws"
            )
            return figures, [note, *notes]
        lossy = self.run.strategy.lossy
        # The losses after the first follow from an update that is then only bounded.
        apart, differing = stretch.difference(recorded, plain, losses_of=1 if lossy else None)

        def judged_with(other: Computed) -> tuple[list[stretch.Figure], list[str]]:
            """Judge, where rounding moves the plain loop to `other`."""
            rounding, _ = stretch.difference(other, plain, other.before)
            figures, notes = stretch.judged(precision, apart, differing, rounding, lossy)
            figures += [] if lossy else stretch.judged_steady(recorded, plain, other, precision)
            limit = next((figure.limit for figure in figures if figure.name == "buffers"), None)
            if differing_statistics and limit is not None:
                farthest = stretch.statistics_apart(recorded, plain)
                figures.append(stretch.Figure("statistics of replicas", farthest, limit, 0.0))
            return [*figures, *stretch.judged_following(following, plain, other, precision)], notes

        figures, notes = judged_with(plain)
        if all(figure.passed for figure in figures):
            return figures, notes  # within the limits even without rounding, so that it is not measured
        again = partial(compute, alike=alike)
        # In fp32 masks might be drawn in another order.
        if declared not in NOISE and plain.masks == "none":
            return judged_with(again(precision="fp32"))
        own = precision != declared  # the task's own code rounds, whatever the run's precision is
        noise = torch.finfo(AUTOCAST[precision]).eps / 2 if own else NOISE.get(declared, NOISE["fp32"])
        return judged_with(again(noise=noise))

    def _overflown(self, where: str, scale: float, plain: float) -> None:
        """Tell whether the run alone has overflowed, by the loss's scales of the run and of the plain process.

        The plain one divides its loss by the replicas, so that it may overflow later than a run: once in thousands of
        steps.
        """
        self.overflown_alone += scale < plain
        if scale > plain:
            self.findings.problems.append(f"{where}: the loss's scale is {scale:g}, and one plain process's {plain:g}")
        elif self.overflown_alone == OVERFLOWN_TWICE:
            self.findings.problems.append(
                f"{where}: fp16 has overflowed there and in an earlier stretch, where one plain process does not"
            )

    def _evaluated(self, spot: Spot, loop: Loop, ended: Plain) -> list[stretch.Figure]:
        """Figures of the run's last evaluation, which is the result that the report shows, by its last model."""
        if (last := evaluated.last_recorded(self.places.work, spot.last)) is None:
            self.findings.unchecked.append(f"end: no evaluation is recorded of step {spot.last}")
            return []
        return evaluated.figures(last, loop, ended)

    def _bytes(self, spots: Spots) -> None:
        """Hold the bytes sent in the spots' steps against those of the chain's first steps."""
        counted = [sum(seen.bytes_sent) for seen in spots.seen.values() if seen.bytes_sent is not None]
        if self.run.shape.backend != "gloo" or self.run.strategy.lossy or spots.early_bytes is None or not counted:
            return
        early = sum(spots.early_bytes)
        if early < LEAST_BYTES:
            return
        ratios = [count / early for count in counted]
        furthest = max(ratios, key=lambda ratio: abs(math.log(max(ratio, 1e-9))))
        self.findings.notes.append(f"bytes sent per step: {early} in its first steps, {furthest:.2f} times that later")
        if not 1 / MOST_BYTES_RATIO <= furthest <= MOST_BYTES_RATIO:
            self.findings.problems.append(
                f"bytes sent: {furthest:.2f} times those of the run's first steps ({early}); allowed is up to "
                f"{MOST_BYTES_RATIO:g} times more or less"
            )


def main(arguments: list[str]) -> None:
    """Parse the command line, check the runs, and write what was found."""
    parser = options.parser(__doc__, "spec", "output", "results", prog="spot_check.process")
    parser.add_argument("--runs", nargs="+", required=True, help="the runs' ids: folders below results/runs")
    given = parser.parse_args(arguments)

    with joined(given.spec) as (_, ranks):
        torch.use_deterministic_algorithms(True, warn_only=True)
        findings = [Check(Places(given.results, run), ranks).findings_of().as_dict() for run in given.runs]
        write_json(given.output, findings)
