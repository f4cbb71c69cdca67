"""Makes the comparison, and shows it."""

from argparse import ArgumentParser
from pathlib import Path

from rich.console import Console

from relay.base.files import errors_in_one_line, read_json_or, write_text
from relay.base.grouped import grouped
from relay.base.options import add
from relay.comparison.columns import COMPARISON, RUNS, SCALING, read_csv, write_csv, write_parquet
from relay.spec.labels import counted

USAGE = """\
Writes the answer (answer.json, recommendation.sbatch), the tables (comparison.csv, .parquet and .md, runs.csv,
scaling.csv, scaling.md), the pictures (pictures/*.svg) and the page (comparison.html) into the results folder. With
--partial it does so whatever has failed, and a run without a result becomes a row `failed` with its error."""


def compare(parser: ArgumentParser, words: list[str]) -> int:
    """Exit status 0. Raises UserError; then nothing was written unless a file cannot be."""
    parser.epilog = USAGE
    parser.add_argument("--plan", type=Path, default=Path("results/plan.json"), help="the plan of all runs")
    parser.add_argument("--partial", action="store_true", help="report what there is though runs failed")
    given = add(parser, "results").parse_args(words)
    from relay.comparison import answer_files, page
    from relay.comparison.decision import answers
    from relay.comparison.inputs import read_inputs
    from relay.comparison.scaling import scaling_rows
    from relay.comparison.setting_result import setting_results
    from relay.comparison.table import comparison_rows, run_row
    from relay.comparison.words import markdown
    from relay.status import compared

    results = given.results
    inputs = read_inputs(given.plan, results, partial=given.partial)
    rows = comparison_rows(inputs)
    all_answers = answers(inputs, rows)
    settings, scaled = setting_results(inputs, rows), scaling_rows(rows)
    sections = page.sections(inputs, settings, all_answers, results)
    html = page.render(inputs, sections, results)
    families = grouped(scaled, lambda row: (row["trained"], row["scaling"]))
    with errors_in_one_line(results, "cannot be written"):
        write_csv(results / "runs.csv", RUNS, map(run_row, inputs.runs))
        write_csv(results / "comparison.csv", COMPARISON, rows)
        write_parquet(results / "comparison.parquet", COMPARISON, rows)
        write_text(results / "comparison.md", markdown("comparison.md.j2", settings=settings, answers=all_answers))
        write_csv(results / "scaling.csv", SCALING, scaled)
        write_text(results / "scaling.md", markdown("scaling.md.j2", families=families))
        answer_files.write(all_answers, results, inputs.margin)
        page.write_pictures(results / "pictures", sections)
        write_text(results / "comparison.html", html)
        compared.note(given.plan, results)
    print(f"{counted(len(inputs.runs), 'run')} in {counted(len(rows), 'row')}: {results / 'comparison.html'}")
    return 0


def show_comparison(parser: ArgumentParser, words: list[str]) -> int:
    """Exit status 0. Raises UserError where there is no comparison."""
    given = add(parser, "results").parse_args(words)
    from relay.comparison.terminal import show

    rows = read_csv(given.results / "comparison.csv", COMPARISON)
    answers = read_json_or(given.results / "answer.json", {}).get("answers", [])
    show(Console(highlight=False), rows, given.results / "comparison.html", answers)
    return 0
