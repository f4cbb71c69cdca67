"""The runs that are planned or trained, as a table for the terminal: which one has come how far?"""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from relay.base.errors import UserError
from relay.base.plain_text import plain_text
from relay.chain.sealed import complete
from relay.run_folder.places import Places
from relay.spec.run import Run
from relay.spec.strategy_files import chosen

COLUMNS = (
    *("run", "task", "strategy", "options", "devices", "CPUs", "loader", "precision", "batch", "seed"),
    *("checkpoint", "steps"),
)


def runs_table(results: Path, width: int = 160) -> str:
    """A row for each run below `results`/runs, in lines of at most `width`. Raises UserError where there is none.

    `checkpoint` is the step of its newest complete one, `steps` the length of its whole training.
    """
    rows = list(_rows(results))
    if not rows:
        raise UserError(f"{results / 'runs'}: no run is there; `snakemake record_plan` writes down all that is planned")
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name == "run")
    for row in rows:
        table.add_row(*row)
    return plain_text(table, width=width)


def _rows(results: Path) -> Iterator[list[str]]:
    for path in sorted(results.glob("runs/*/run.json")):
        try:
            run = Run.read(path)
        except UserError:  # of another version: it must not hide the others
            yield [path.parent.name, "unreadable"]
            continue
        step = next(iter(complete(Places(results, run.id).work)), None)
        options = ", ".join(
            f"{name} {value}" for name, value in chosen(Path(run.strategy.file), run.strategy.options).items()
        )
        cells = [
            run.id,
            run.task.name,
            run.strategy.name,
            options or "–",
            run.shape.devices,
            run.shape.cpus_per_task,
            run.feeding.loader,
            run.computation.precision,
            run.batch.global_batch_size,
            run.seed,
            "–" if step is None else step,
            run.length.total_steps,
        ]
        yield list(map(str, cells))
