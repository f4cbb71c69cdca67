"""The job that runs a trained model in C++: around the process that exports, builds, runs and compares."""

import shutil
from pathlib import Path

from relay.base.entry import ROOT
from relay.base.files import read_json, write_json
from relay.launch.launcher import Start, launch, started
from relay.run_folder import faults, run_chain
from relay.run_folder.places import Places

SOURCES = ROOT / "workflow" / "libtorch"


def run_libtorch(
    spec: Path,
    run: str | None,
    results: Path,
    output: Path,
    attempt: int = 1,
    *,
    start: Start = launch,
    sources: Path | None = None,
    seconds: float = 1.0,
) -> int:
    """Compare a run's model in C++ with Python, and write `output`; returns the job's exit status.

    Without a run, the smallest program is built and run instead.

    Outputs that differ, and a compiler that is missing, are findings, not failed jobs. A fault of the program's own is
    one; processes that were killed from outside are worth a retry. `start` starts its process. Each round of measuring
    takes at least so many `seconds`.
    """
    work = output.with_suffix(".work")  # a folder of the bare name may be the user's
    what = f"LibTorch of run {run}" if run else "LibTorch's example"
    sources = sources or (SOURCES if run else SOURCES / "example")
    if (ended := faults.begin(work, what, attempt)) is not None:
        return ended
    findings = work / "found.json"
    arguments = ["--results", str(results), "--sources", str(sources), f"--seconds={seconds}"]
    arguments += ["--run", run] if run else []
    status = started(spec, "libtorch.process", results, findings, arguments, start=start)
    if findings.is_file():
        made_by = {"generation": run_chain.declared(Places(results, run).run)} if run else {}
        write_json(output, read_json(findings) | made_by)
        shutil.rmtree(work, ignore_errors=True)
        return 0
    return faults.concluded(work, what, status)
