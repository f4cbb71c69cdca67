"""Which files of a plan are finished, told by what they hold.

Snakemake compares the times of files. A copy, a backup, a synchronised folder or a wrong clock changes these, and then
finished work would be done again, or missing work left undone. So the rules ask here. A file that is finished needs
nothing; one that is there and not finished is made anew.

Each function returns '' for a finished file, or why it is not finished.
"""

import json
import os
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from relay.base.files import MISSING, has_checksum, looked_at, read_json_or
from relay.run_folder import attempts, replaced, run_chain
from relay.run_folder.places import Places
from relay.spec.tasks import DatasetSpec
from relay.status import compared

UNFINISHED = "unfinished"  # a folder with a file for each output that Snakemake is to make anew
OLDER_START = "is that of an older start of the run"
# What jobs hand to each other, below the results.
HANDED_ON = (
    "datasets/*/manifest.json",
    "environments/*.json",
    "preflight/*/facts.json",
    "equivalence/*/*/reference.pt",
    "equivalence/*/*/verdict.json",
    "runs/*/*.json",
    *(f"{kind}/*.json" for kind in ("speeds", "probe", "largest_model", "libtorch")),
    "plan.json",
)


def start(run: Path) -> str:
    """`start.json`, which declares a start of a run. `run` is the folder of its run.json."""
    why, _ = looked_at(run / run_chain.START, run=run.name)
    return why or ("" if run_chain.declared_there(run) else "names no start")


def segment(places: Places, end: int) -> str:
    """The state file of the segment that ends at step `end`."""
    why, content = looked_at(places.state(end), run=places.run_id, step=end)
    return why or _of_start(content, places.run)


def summary(places: Places, warmup_steps: int) -> str:
    """A run's summary. Another `warmup_steps` is another reading of the records, as long as these are there."""
    why, content = looked_at(places.run / "summary.json", run=places.run_id)
    if why or "status" not in content:
        return why or "lacks 'status'"
    warmup_then = content.get("warmup_steps", warmup_steps)
    if warmup_then != warmup_steps and attempts.numbers(places.work):
        return f"is for warmup_steps {warmup_then}, not {warmup_steps}"
    return _of_start(content, places.run)


def reference(file: Path) -> str:
    """A trained reference: all of its bytes are there as they were written."""
    try:
        return "" if has_checksum(file) else "is damaged, or another version wrote it"
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def spot_check(file: Path, runs: Collection[Places]) -> str:
    """The verdict of a spot check: of all these runs, and of their present starts."""
    why, content = looked_at(file)
    if why:
        return why
    checks = content.get("runs")
    checked = {each.get("run"): each for each in checks if isinstance(each, dict)} if isinstance(checks, list) else {}
    for places in runs:
        if places.run_id not in checked:
            return f"says nothing of run {places.run_id}"
        begins_anew = run_chain.declared(places.run) is None and not (places.run / "summary.json").exists()
        if why := OLDER_START if begins_anew else _of_start(checked[places.run_id], places.run):
            return why
    return ""


def comparison(outputs: Collection[Path], results: Path, plan: Mapping[str, Any]) -> str:
    """The comparison's files: made of just the results that are there, by this plan."""
    answer = read_json_or(results / "answer.json", {})
    answers = answer.get("answers") or ()
    recommended = [
        results / "runs" / each["run"] / "run.json" for each in answers if isinstance(each, dict) and each.get("run")
    ]
    if missing := [path for path in (*outputs, *recommended) if not path.exists()]:
        return f"needs {missing[0]}, which {MISSING}"
    return compared.differs(plan, results)


def dataset(folder: Path, spec: DatasetSpec) -> str:
    """A prepared dataset: its files are there, in the size that the manifest names. Jobs look at every byte."""
    why, content = looked_at(folder / "manifest.json", name=spec.name, version=spec.version)
    if why:
        return why
    files = content.get("files")
    for name, entry in files.items() if isinstance(files, dict) else ():
        try:
            if (folder / name).stat().st_size != entry["bytes"]:
                return f"names another size of {name}"
        except (OSError, TypeError, KeyError):
            return f"names {name}, which {MISSING}"
    return "" if isinstance(files, dict) else "names no files"


def exported(file: Path, run: Path) -> str:
    """A trained model as safetensors: of the run's present start."""
    if not file.exists():
        return MISSING
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return _of_start(header["__metadata__"], run, noted=True)
    except (OSError, ValueError, KeyError, OverflowError, MemoryError):
        return "is damaged"


def of_run(file: Path, run: Path) -> str:
    """A result in JSON that was made of one run's trained model: of the run's present start."""
    why, content = looked_at(file)
    return why or _of_start(content, run, noted=True)


def record(path: Path, **expected: Any) -> str:
    """A file of JSON. Where it names what is `expected`, it agrees."""
    return looked_at(path, **expected)[0]


def text(path: Path, content: str) -> str:
    """A file that holds just this text."""
    if not path.exists():
        return MISSING
    try:
        return "" if path.read_text(encoding="utf-8") == content else "is of another plan"
    except (OSError, ValueError):
        return "cannot be read"


def settle(results: Path) -> None:
    """What a driver does before Snakemake looks at the files.

    The files that jobs hand on get today's time where theirs lies in the future, because a clock was wrong: Snakemake
    takes every output that is older than an input for a failure of its job. What an earlier call has asked to be made
    anew is asked for again.
    """
    shutil.rmtree(results / UNFINISHED, ignore_errors=True)
    for folder in results.glob(f"*/{replaced.FOLDER}/*"):
        places = Places(results, folder.name)
        if read_json_or(places.run / "summary.json", {}).get("status") == "done":  # killed before it was forgotten
            replaced.forget(places)
    now = time.time()
    for pattern in HANDED_ON:
        for path in results.glob(pattern):
            try:
                if path.stat().st_mtime > now:
                    os.utime(path, (now, now))
            except OSError:  # another user's file: Snakemake says what it cannot do with it
                continue


def _of_start(content: Mapping[str, Any], run: Path, *, noted: bool = False) -> str:
    """'' where a result is of the start that its run has declared. Older versions noted none: with `noted`, it has to
    be.
    """
    generation, declared = content.get("generation"), run_chain.declared(run)
    if noted and generation is None:
        return "does not say of which start of the run it is"
    return OLDER_START if None not in (generation, declared) and generation != declared else ""
