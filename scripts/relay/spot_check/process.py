"""The process of a spot check: computes a few steps of each run again, and holds them against what the run recorded.

Started by the launcher: `python -m relay.launch.worker spot_check.process WORK --help`.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from relay.base import options
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder import attempts, chain
from relay.run_folder.places import Places, dataset_folder
from relay.run_folder.sealed import damage
from relay.run_folder.spots import Spot, Spots, states_folder
from relay.spec.run import Run, Training
from relay.spot_check.evaluated import Evaluation, last_of
from relay.spot_check.figures import DRAWS, Figure, Recorded, difference, judged, judged_of_draws
from relay.spot_check.plain import Division, Loop, State, Streams

# How far rounding goes is seen by changing the parameters by one unit in the last place, or, where matrix products are
# rounded, by computing in fp32.
NOISE = {"fp64": 2.0**-52, "fp32": 2.0**-23}
# How much the bytes sent in a step may change in the course of a run: routing of tokens changes them a little, a
# compression to fp16 halves them. Fewer bytes are the control group's, and the kernel's.
MOST_BYTES_RATIO, LEAST_BYTES = 1.5, 20_000
PLURAL = ("losses", "buffers")  # names of figures


@dataclass
class Findings:
    """What the check of one run found. `unchecked` says why something could not be checked.

    `generation` is the start of the run that was checked.
    """

    run: str
    generation: str | None = None
    spots: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    seconds: float = 0.0
    saving_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json."""
        checked = bool(self.spots) or bool(self.problems)
        status = "failed" if self.problems else "passed" if checked else "not checked"
        return {**vars(self), "status": status}


class Check:
    """The check of one run."""

    def __init__(self, places: Places, ranks: Ranks) -> None:
        self.places, self.ranks = places, ranks
        self.run = Run.read(places.run / "run.json")
        self.folder, self.dataset = states_folder(places.work), dataset_folder(places.results, self.run.dataset)
        self.writers = self.run.length.checkpoint_writers
        self.findings = Findings(self.run.id)

    def findings_of(self) -> Findings:
        """Check all that the run has kept. Raises UserError where the dataset is missing."""
        began = time.monotonic()
        self.findings.generation = (chain.read(self.places.work) or {}).get("generation")
        known = Spots.read(self.places.work)
        if known is None or not known.replicas:
            self.findings.unchecked.append(f"{self.folder} is gone, or damaged, or nothing was kept there")
            return self.findings
        try:
            self._check(known)
        except UserError:
            raise
        except Exception as error:  # the other runs' checks go on
            traceback.print_exc()
            self.findings.unchecked.append(f"the check failed: {type(error).__name__}: {error}")
        self.findings.seconds = round(time.monotonic() - began, 3)
        return self.findings

    def _check(self, known: Spots) -> None:
        self.findings.saving_seconds = known.seconds
        self.findings.unchecked += known.missed
        losses = kept_losses(self.places.work)
        loop = Loop(self.run, self.dataset, self.ranks)
        for spot in dict.fromkeys(known.spots):
            self._spot(spot, known, losses, loop)
        self._bytes(known)

    def _spot(self, spot: Spot, known: Spots, losses: dict[int, float], loop: Loop) -> None:
        """Check one spot."""
        where = f"{spot.kind}, steps {spot.first + 1} to {spot.last}"
        states = [self.folder / f"step-{step}" for step in (spot.first, spot.last)]
        if problem := next(filter(None, (damage(state, self.writers) for state in states)), None):
            self.findings.unchecked.append(f"{where}: {problem}")
            return
        wanted = range(spot.first + 1, spot.last + 1)
        if missing := [step for step in wanted if step not in losses]:
            self.findings.unchecked.append(f"{where}: the loss of step {missing[0]} is not recorded")
            return
        try:
            recorded = Recorded([losses[step] for step in wanted], State.of(loop.read(states[1])))
            division = Division(self.run, known)
            figures, notes = self._figures(spot, division, loop, states[0], recorded)
            if spot.kind == "end":
                figures += self._evaluated(spot, division, loop, states[1])
        except CheckpointException as error:
            told = " ".join(str(error).split())[:300]
            self.findings.problems.append(f"{where}: what the run saved cannot be read by one process: {told}")
            return
        parts = [figure.as_dict() for figure in figures]
        self.findings.notes += [f"{where}: {note}" for note in notes]
        if parts:
            self.findings.spots.append({"kind": spot.kind, "first": spot.first, "last": spot.last, "parts": parts})
        for figure in figures:
            if not figure.passed:
                at = f"; most in {figure.where}" if figure.where else ""
                differ = "differ" if figure.name in PLURAL else "differs"
                self.findings.problems.append(
                    f"{where}: {figure.name} {differ} from one plain process's by {figure.figure:.1e}, allowed is "
                    f"{figure.limit:.0e}{at}"
                )

    def _figures(
        self, spot: Spot, division: Division, loop: Loop, state: Path, recorded: Recorded
    ) -> tuple[list[Figure], list[str]]:
        """The figures of a spot, and notes."""
        precision, world_size = self.run.computation.precision, self.run.shape.world_size
        saved = Streams.saved(self.run, state, world_size)
        plain = loop.compute(state, spot, division, saved.copy())
        if not all(map(math.isfinite, plain.losses)):
            self.findings.problems.append(
                f"{spot.kind}, steps {spot.first + 1} to {spot.last}: one plain process's loss is not finite there, "
                "the run recorded finite ones"
            )
            return [], []
        if plain.after.loss_scale < plain.before.loss_scale or recorded.after.loss_scale < plain.before.loss_scale:
            return [], ["fp16 has overflowed in these steps: nothing is compared"]
        normalised = bool(plain.before.buffers)
        if normalised and not self._divided_as_seen(spot, division):
            return [], ["how its slices were divided is not known, and BatchNorm depends on it: nothing is compared"]
        if plain.masks == "others":
            draws = [loop.compute(state, spot, division, Streams.fresh(d, world_size)) for d in range(DRAWS)]
            figures, notes = judged_of_draws(recorded, draws, precision)
            told = f"its masks of dropout cannot be drawn again in one process: held against {DRAWS} other draws"
            return figures, [told, *notes]
        again = partial(loop.compute, state, spot, division, saved.copy())
        # In fp32 masks might be drawn in another order.
        low = precision not in NOISE and plain.masks == "none"
        other = again(precision="fp32") if low else again(noise=NOISE.get(precision, NOISE["fp32"]))
        rounding = difference(Recorded(other.losses, other.after), plain, other.before)
        lossy = self.run.strategy.lossy
        # The losses after the first follow from an update that is then only bounded.
        found = difference(recorded, plain, losses_of=1 if lossy else None)
        return judged(precision, found, rounding, lossy)

    def _evaluated(self, spot: Spot, division: Division, loop: Loop, state: Path) -> list[Figure]:
        """Figures of the run's last evaluation, which is the result that the report shows."""
        recorded = last_of((line for lines in kept_lines(self.places.work) for line in lines), spot.last)
        if recorded is None:
            self.findings.unchecked.append(f"end: no evaluation is recorded of step {spot.last}")
            return []
        return Evaluation(loop, self.dataset, division).figures(recorded, state)

    def _divided_as_seen(self, spot: Spot, division: Division) -> bool:
        size = self.run.batch.global_batch_size // division.replicas
        steps = range(spot.first + 1, spot.last + 1)
        known = all(division.parts(step, each, size) for step in steps for each in range(division.replicas))
        return known and self.run.shape.devices_per_process == 1

    def _bytes(self, known: Spots) -> None:
        """Hold the bytes sent in the spots' steps against those of the chain's first steps."""
        counted = [sum(seen.bytes_sent) for seen in known.seen.values() if seen.bytes_sent is not None]
        if self.run.shape.backend != "gloo" or self.run.strategy.lossy or known.early_bytes is None or not counted:
            return
        early = sum(known.early_bytes)
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


def kept_losses(work: Path) -> dict[int, float]:
    """The training loss of each step that was kept, over all attempts."""
    losses: dict[int, float] = {}
    for lines in kept_lines(work):
        step = lines[0]["start"]
        if any(line.get("losses") for line in lines):
            losses = {earlier: loss for earlier, loss in losses.items() if earlier <= step}
        for line in lines:
            for loss in line.get("losses", []):
                step += 1
                losses[step] = loss
    return losses


def kept_lines(work: Path) -> list[list[dict[str, Any]]]:
    """The lines of each attempt of the chain that has left records."""
    known = chain.read(work) or {"attempts": []}
    return list(filter(None, (attempts.read(work, attempt["number"]) for attempt in known["attempts"])))


@contextmanager
def no_service(_: Training) -> Iterator[None]:
    """Nothing is needed on the node."""
    yield


def main(arguments: list[str]) -> None:
    """Parse the command line, check the runs, and write what was found."""
    parser = options.parser(__doc__, "spec", "output", "results", prog="spot_check.process")
    parser.add_argument("--runs", nargs="+", required=True, help="the runs' ids: folders below results/runs")
    given = parser.parse_args(arguments)

    with joined(given.spec, no_service) as (_, ranks):
        torch.use_deterministic_algorithms(True, warn_only=True)
        found = [Check(Places(given.results, run), ranks).findings_of().as_dict() for run in given.runs]
        write_json(given.output, found)
