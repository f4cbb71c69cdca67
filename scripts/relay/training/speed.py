"""What a step of a setting takes, measured by training a little: for jobs whose length is given in minutes."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import write_json
from relay.run_folder import faults, job_times
from relay.spec.job import Job
from relay.spec.run import Run, changed
from relay.training.job import Places, run_segment
from relay.training.summary import summarise

MEASURED_STEPS = 100


def measure(run: Run, results: Path, *, job: Job | None = None, attempt: int = 1) -> dict[str, Any]:
    """The times of a job of the run's setting, as `JobTimes` has them, from a short training that is then removed.

    Its `seconds_per_step` are those of the steps that are timed in a run as well: warm-up and evaluation are not in it.

    Raises UserError where it fails; its output tells why. A retry (`attempt` > 1) only repeats a fault in words.
    """
    steps = min(run.length.total_steps, run.length.warmup_steps + MEASURED_STEPS)
    probe = changed(run, id=f"speed-{run.setting_id}", evaluate_every_steps=run.length.total_steps)
    places = Places(results, probe.id)
    if attempt > 1 and (fault := faults.recorded(places.work)):
        raise UserError(f"setting {run.setting_id}: failed before, not tried again: {fault.error}")
    for left in (places.work, places.run):  # by a measurement that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        probe.write(places.run / "run.json", job)
        write_json(places.run / "start.json", {"generation": "speed"})
        if run_segment(places, 0, steps, tries=1) != 0:
            raise UserError(f"setting {run.setting_id}: its speed could not be measured; the lines above say why")
        speed = summarise(probe, places.work).samples_per_second
        if speed is None:
            raise UserError(f"setting {run.setting_id}: {steps} steps leave none to measure after the warm-up")
        (times,) = job_times.of_run(places.work)
        measured = {"seconds_per_step": float(run.batch.global_batch_size / speed)}
        return {"setting": run.setting_id, **asdict(times), **measured}
    finally:
        shutil.rmtree(places.run, ignore_errors=True)
        if faults.recorded(places.work) is None:
            shutil.rmtree(places.work, ignore_errors=True)
