"""Makes the comparison: python scripts/compare.py --plan results/plan.json --results results

Writes the answer (answer.json, recommendation.sbatch), the tables (comparison.csv, .parquet and .md, runs.csv,
scaling.csv, scaling.md), the pictures (pictures/*.svg) and the page (comparison.html) into the results folder. With
--partial it does so whatever has failed, and a run without a result becomes a row `failed` with its error.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from relay.base import entry, options
from relay.comparison import answer_files, exports, made_of, page
from relay.comparison.columns import COMPARISON, RUNS
from relay.comparison.decision import answers
from relay.comparison.exports import write_csv, write_whole
from relay.comparison.inputs import read_inputs
from relay.comparison.measured import setting_results
from relay.comparison.scaling import COLUMNS as SCALING
from relay.comparison.scaling import grids, markdown, scaling_rows
from relay.comparison.table import comparison_rows, run_rows


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0. Raises UserError; then nothing was written unless a file cannot be."""
    given = parser().parse_args(arguments)
    inputs = read_inputs(given.plan, given.results, partial=given.partial)
    rows = comparison_rows(inputs)
    found = answers(inputs, rows)
    settings, scaled = setting_results(inputs, rows), scaling_rows(rows)
    sections = page.sections(inputs, settings, found, given.results)
    html = page.render(inputs, settings, sections, given.results)
    write_csv(given.results / "runs.csv", RUNS, run_rows(inputs))
    write_csv(given.results / "comparison.csv", COMPARISON, rows)
    exports.write_parquet(given.results / "comparison.parquet", COMPARISON, rows)
    write_whole(given.results / "comparison.md", exports.markdown(settings, found))
    write_csv(given.results / "scaling.csv", SCALING, scaled)
    write_whole(given.results / "scaling.md", markdown(scaled, grids(rows)))
    answer_files.write(found, given.results, inputs.margin)
    exports.write_pictures(given.results / "pictures", page.pictures(sections))
    write_whole(given.results / "comparison.html", html)
    made_of.note(given.plan, given.results)
    print(f"{len(inputs.records)} runs in {len(rows)} rows: {given.results / 'comparison.html'}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = options.parser(__doc__, "results")
    result.add_argument("--plan", type=Path, default=Path("results/plan.json"), help="the plan of all runs")
    result.add_argument("--partial", action="store_true", help="report what there is though runs failed")
    return result


if __name__ == "__main__":
    entry.run(main)
