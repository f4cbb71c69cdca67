"""Which planned runs were trained, or go on, with other code of their strategy than today's file. Needs no torch."""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.base.files import read_json_or
from relay.chain.sealed import complete
from relay.run_folder import run_chain
from relay.run_folder.places import Places
from relay.run_folder.replaced import how_anew
from relay.run_folder.snapshot import freeze, name_of_today, noted, planned
from relay.run_folder.sound_checkpoints import saved_step
from relay.spec.identity import module_sources, source_digest, strategy_sources, task_sources
from relay.spec.run import Run, Training
from relay.spec.script import Script

NAMED = 5  # of more runs a message names the strategy alone


def warnings(runs: Iterable[Run], results: Path) -> list[str]:
    """A line for each strategy whose runs keep older code: what becomes of them, and how to train them anew."""
    today: dict[str, str | None] = {}
    groups: dict[tuple[str, bool], list[Places]] = {}
    for run in runs:
        name, places = run.strategy.name, Places(results, run.id)
        if name not in today:
            today[name] = source_today(run)
        then, finished = _trained_with(run, places)
        if _differs(then, today[name]):
            groups.setdefault((name, finished), []).append(places)
    return [_line(name, finished, group) for (name, finished), group in groups.items()]


def sources(run: Training) -> str:
    """The digest of the strategy's code, or of the script's files, as they are now. Raises UserError."""
    script = run.strategy.script
    return source_digest(map(Path, script.files) if script else strategy_sources(Path(run.strategy.file)))


def source_today(run: Run) -> str | None:
    """The same; None where they cannot be read."""
    try:
        return sources(run)
    except UserError:
        return None


def training_source(run: Training) -> str:
    """The digest of the code that trains a run, as it is now, but for its strategy's. Raises UserError."""
    if run.strategy.script:
        return source_digest(module_sources(ROOT, "script.process"))
    modules = ("training.trainer", "strategies.base")
    return source_digest({*module_sources(ROOT, *modules), *task_sources(ROOT, run.task.name, run.task.file)})


def files(run: Training) -> tuple[Path | None, str, Script | None]:
    """Whose code is frozen, beside the package: the strategy's, the task's, or the script's."""
    script = run.strategy.script
    return None if script else Path(run.strategy.file), run.task.file, script


def code_of_today(run: Training, folder: Path) -> dict[str, str]:
    """Freeze today's code for a run, or a gate, into `folder`: its name, and digests of it."""
    script = run.strategy.script
    if script and sources(run) != script.source:
        edited = script.file or ", ".join(script.files)
        raise UserError(
            f"run {run.id}: {edited} was edited after the plan was made; start the same call again, which makes it anew"
        )
    frozen = freeze(*files(run), folder=folder)
    # Each takes a tenth of a second and more, and many runs are trained by one code.
    digest = partial(noted, frozen, is_todays=lambda: name_of_today(*files(run)) == frozen.name)
    trains = "script" if script else f"training of {run.task.name}"
    return {
        "code": frozen.name,
        "strategy_source": script.source if script else digest(f"strategy {run.strategy.name}", partial(sources, run)),
        "training_source": digest(trains, partial(training_source, run)),
    }


def edited_since(run: Run, places: Places) -> str:
    """What was edited since the run began, and what to do about it; '' where nothing was, or nothing is known."""
    then = run_chain.read(places.work)
    now: dict[str, str | None] = {**planned(places.code, run)}
    if not now:
        now["strategy_source"] = source_today(run)
        with suppress(UserError):  # it cannot be read now
            now["training_source"] = training_source(run)
    words = {"strategy_source": "its strategy's code", "training_source": "the code that trains"}
    edited = [phrase for name, phrase in words.items() if _differs(getattr(then, name, None), now.get(name))]
    if not edited:
        return ""
    return (
        f"{' and '.join(edited)} changed after the run had begun, which may be the reason; to train it with today's: "
        f"{how_anew(places.run_id)}"
    )


def may_change(run: Run, work: Path) -> bool:
    """Whether a run can still take other code: it has no checkpoint that other code would go on with.

    An edit of a script makes another run of it.
    """
    return run.strategy.script is None and not complete(work)


def _trained_with(run: Run, places: Places) -> tuple[str | None, bool]:
    """The digest of the strategy's code that a run keeps, and whether it is finished; None where it keeps none."""
    summary = read_json_or(places.run / "summary.json", None)
    if summary and isinstance(summary, dict):  # the report tells of a damaged one
        return summary.get("strategy_source"), True
    chain = run_chain.read(places.work)
    if chain is None or chain.generation != run_chain.declared(places.run) or may_change(run, places.work):
        return None, False
    return chain.strategy_source, False


def _differs(then: str | None, today: str | None) -> bool:
    return None not in (then, today) and then != today


def _line(strategy: str, finished: bool, group: list[Places]) -> str:
    whose = f"run {group[0].run_id}" if len(group) == 1 else f"{len(group)} runs of it"
    if finished:
        becomes = f"{whose}, finished before, will not be trained again, and the report strikes out what it measured"
    elif len(group) == 1:
        becomes = f"{whose} goes on from step {saved_step(group[0].work)} with the code that it began with"
    else:
        becomes = f"{whose} go on from their checkpoints with the code that they began with"
    anew = how_anew(*(places.run_id for places in group) if len(group) <= NAMED else [strategy])
    return f"strategy {strategy}: its code has changed. {becomes}. To train with today's code from the start: {anew}"
