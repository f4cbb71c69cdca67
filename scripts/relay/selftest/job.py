"""The self-test's own jobs: a fault is planted and has to be told right; a run is killed and has to go on."""

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from relay.base import ending
from relay.base.ending import INTERRUPTED, LOG, Ending
from relay.base.environment import variable
from relay.base.errors import UserError
from relay.base.files import read_json, write_json
from relay.chain.sealed import complete
from relay.chain.writers import make_own
from relay.equivalence.campaign import ended_after
from relay.launch.launcher import launch
from relay.process.one_gpu import without_mps
from relay.run_folder import faults, run_chain
from relay.run_folder.places import Places
from relay.run_folder.snapshot import freeze
from relay.selftest.parts import FAULTS, PARTS, RESUME, Planted
from relay.spec.messages import unknown
from relay.spec.run import Run
from relay.training.job import run_segment
from relay.training.summary import kept_losses, summarise

MOST_SECONDS = 300.0  # a planted fault that is not noticed until then never is
WORDS = {ending.FAULT: "a fault of its own, not tried again", INTERRUPTED: "an interruption, tried again"}
# How far the losses of so many steps after a kill may be from the uncut run's on a GPU. Kernels that add in another
# order move them by 1e-6 there, and by 1e-2 some hundred steps later; samples seen twice, or a lost momentum, move them
# by 1e-2 at once.
FOLLOWED, NEAR = 10, 1e-3
SAME = ("losses", "test_loss", "test_accuracy")


def run_part(part: str, spec: Path, results: Path, output: Path) -> int:
    """Do one part and write its record: `ok`, and what was `told`. Returns the exit status 0: a finding is no failure.

    Raises UserError for an unknown part, and where the run cannot be read.
    """
    if part not in PARTS:
        raise UserError(f"--part: {unknown(f'{part!r} is unknown', part, PARTS)}")
    started = time.monotonic()
    with without_mps():
        ok, message = _resumed(spec, results, output) if part == RESUME else _planted(part, spec, results, output)
    write_json(output, {"ok": ok, "told": message, "seconds": round(time.monotonic() - started, 1)})
    print(f"{part}: {'as it should be' if ok else 'NOT as it should be'}: {message}")
    return 0


def _planted(name: str, spec: Path, results: Path, output: Path) -> tuple[bool, str]:
    """Plant a fault in a pair of processes; whether its job would end as it should, and what it would say."""
    fault, work = FAULTS[name], output.with_suffix(".work")
    make_own(work)
    faults.forget(work)
    arguments = ["--spec", str(spec), "--fault", name]
    with ended_after(MOST_SECONDS):
        status = launch(spec, "selftest.planted", work, arguments, freeze(None, folder=results / "code"))
    if status == 0 and not faults.of_ranks(work):
        return False, "nobody has noticed it"
    log = work / "planted.log"
    with variable(LOG, str(log)):  # what is told of its end is told beside this log
        faults.concluded(work, name, status)
        ended = ending.read(log)
    return judged(fault, ended)


def judged(fault: Planted, ended: Ending | None) -> tuple[bool, str]:
    """Whether a job that met the fault has ended as it should, and how it has ended."""
    if ended is None:
        return False, "it ended without a word"
    as_it_should = ended.status == fault.ending and any(words in ended.what for words in fault.says)
    return as_it_should, f"{WORDS[ended.status]}: {' '.join(ended.what.split())}"


def _resumed(spec: Path, results: Path, output: Path) -> tuple[bool, str]:
    """Train a run once more, in a folder of its own, and kill one of its processes: is its result the uncut run's?

    Raises UserError where the uncut run has no result.
    """
    run = Run.read(spec)
    places = Places(output.with_suffix(".work"), run.id)
    shutil.rmtree(places.results, ignore_errors=True)
    places.run.mkdir(parents=True)
    shutil.copy(spec, places.run / "run.json")
    (places.results / "datasets").symlink_to((results / "datasets").resolve())
    write_json(places.run / run_chain.START, {"generation": RESUME, "run": run.id})
    killed: list[int] = []
    Thread(target=_kill_one, args=(places.work, killed), daemon=True).start()
    steps = run.length.total_steps
    first = run_segment(places, 0, steps, tries=1)
    if first != INTERRUPTED or not killed:
        message = "it ended before it was killed" if first == 0 else "its end was taken for a fault of its own"
        return False, f"{message} (status {first})"
    if status := run_segment(places, 0, steps, tries=2):
        return False, f"killed after step {killed[0]}, it did not go on (status {status})"
    uncut, resumed = read_json(Path(results / "runs" / run.id / "summary.json")), summarise(run, places.work).as_dict()
    if uncut is None:
        raise UserError(f"run {run.id}: {results / 'runs' / run.id}/summary.json is missing; it is trained first")
    began, theirs = killed[0], kept_losses(Places(results, run.id).work)
    mine = kept_losses(places.work)
    apart = max(abs(mine[step] - theirs[step]) for step in range(began + 1, min(began + FOLLOWED, steps) + 1))
    ok, message = compared(uncut, resumed, f"killed after step {began} of {steps}, it went on", run.shape.device, apart)
    if ok:  # its files would explain what went wrong
        shutil.rmtree(places.results)
    return ok, message


def compared(uncut: dict[str, Any], resumed: dict[str, Any], began: str, device: str, apart: float) -> tuple[bool, str]:
    """Whether a run that was killed has the result of the same run that was not: on CPUs bit for bit.

    Runs do not ask for deterministic kernels, and some of a GPU's add in another order each time: there the losses of
    the first steps after the kill are compared, which are `apart` at most.
    """
    other = [name for name in SAME if uncut[name] != resumed[name]]
    if not other:
        return True, f"{began}, to the same result, bit for bit"
    if device == "cuda":
        return (
            apart <= NEAR,
            f"{began}: the losses of the next {FOLLOWED} steps are within {apart:.1e} of the uncut run's",
        )
    first, then = uncut["test_loss"], resumed["test_loss"]
    return False, f"{began}, to another result: {', '.join(other)}; test loss {first!r}, then {then!r}"


def _kill_one(work: Path, killed: list[int]) -> None:
    """Kill the youngest of the processes that train in `work` as soon as there is a checkpoint; note the step."""
    while not (steps := complete(work)):
        time.sleep(0.01)
    trainers = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if str(work) in words and any(word.endswith("training.trainer") for word in words):
                trainers.append((process.create_time(), process.pid))
    if trainers:
        killed.append(steps[0])
        os.kill(max(trainers)[1], signal.SIGKILL)
