"""The report's plots of where time goes, as SVG elements: what runs used over time, their jobs, and their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from relay.base.clock import duration
from relay.comparison.drawing import (
    ACCENT,
    INK,
    LINE,
    MUTED,
    ON_PARTS,
    PANEL_CHARACTERS,
    PARTS,
    figure_of,
    in_rows,
    named,
    styled,
    svg_of,
    time_unit,
    titled,
)
from relay.comparison.inputs import Record
from relay.comparison.measured import SettingResult

# The parts of a job's time, and of a step's: their names in a summary, and in words.
OF_A_JOB = {
    "startup": "start-up",
    "loading": "import and loading",
    "steps": "useful steps",
    "repeated": "steps done again",
    "evaluation": "evaluation",
    "saving": "saving",
    "idle": "idle",
}
OF_A_STEP = {
    "step_compute_fraction": "compute",
    "step_communication_fraction": "exposed communication",
    "step_optimizer_fraction": "optimizer",
    "step_data_fraction": "waiting for data",
    "step_no_cpu_fraction": "ready, no CPU free",
    "step_idle_fraction": "idle GPU",
}
MOST_JOBS = 8  # of a run: more of them would be too many to read
LEAST_LABEL = 0.08  # of the width: a part that is narrower has no label


def best_run(setting: SettingResult, needs: str) -> Record | None:
    """The fastest repeat whose summary has what is needed; None without one."""
    usable = [record for record in setting.records if record.summary and record.summary.get(needs)]
    return max(usable, key=lambda record: record.speed or 0.0, default=None)


def usage_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """CPU and GPU utilisation, and power, over the time of each setting's best run, as SVG; None without any looks."""
    courses = [(each, run.summary["course"]) for each in settings if (run := best_run(each, "course")) and run.summary]
    drawn = [(each, course) for each, course in courses if len(course["seconds"]) > 1]
    if not drawn:
        return None
    power = any(course.get("gpu_power_watts") for _, course in drawn)
    on_gpus = any(course.get("gpu_utilisation") for _, course in drawn)
    size, unit = time_unit(max(second for _, course in drawn for second in course["seconds"] if second is not None))
    with styled(name):
        figure = figure_of(0.75 + 1.15 * len(drawn), left=0.55, bottom=0.65, top=0.3)
        columns = 2 if power else 1
        panels = figure.subplots(len(drawn), columns, sharex=True, sharey="col", squeeze=False)
        figure.subplots_adjust(wspace=0.28, hspace=0.75)
        for (setting, course), (used, *rest) in zip(drawn, panels, strict=True):
            _line(used, course, "cpu_utilisation", size, 100, color=INK, linestyle="--", label="CPUs")
            _line(used, course, "gpu_utilisation", size, 100, color=ACCENT, linestyle="-", label="GPUs")
            titled(used, setting.name + setting.mark, PANEL_CHARACTERS if power else 2 * PANEL_CHARACTERS)
            for axes in rest:
                _line(axes, course, "gpu_power_watts", size, 1, color=ACCENT, linestyle="-", label="")
        for axes in panels.flat:
            axes.set_ylim(bottom=0)
            axes.locator_params(axis="y", nbins=4)
            axes.grid(axis="y")
        figure.supxlabel(f"{unit} since the run's first look", fontsize=9, color=MUTED, y=0.22 / figure.get_figheight())
        figure.supylabel("in use (%)", fontsize=9, color=MUTED, x=0.01)
        if power:
            figure.text(0.99, 0.995, "power of all GPUs (W)", fontsize=8, color=MUTED, ha="right", va="top")
        key = "dashed: CPUs" + ("; solid: GPUs" if on_gpus else "")
        figure.text(0.02, 0.03 / figure.get_figheight(), key, fontsize=7.5, color=INK)
        return svg_of(figure, name)


def _line(axes: Axes, course: dict[str, Any], what: str, size: float, factor: float, **style: Any) -> None:
    values = course.get(what)
    if not values:
        return
    # matplotlib leaves a gap where a value is not a number: between two jobs.
    seconds, shown = ([float("nan") if v is None else v for v in each] for each in (course["seconds"], values))
    axes.plot([s / size for s in seconds], [factor * v for v in shown], linewidth=1, **style)


def timeline_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """The jobs of each setting's best run as bars, with what their time went to, as SVG; None without any."""
    drawn = [
        (each, _shown(run.summary["jobs"])) for each in settings if (run := best_run(each, "jobs")) and run.summary
    ]
    if not drawn:
        return None
    rows = sum(len(jobs) + 0.9 for _, jobs in drawn)
    longest = max(sum(job["parts"].values()) for _, jobs in drawn for job in jobs if job)
    size, unit = time_unit(longest)
    parts = [part for part in OF_A_JOB if any(job["parts"][part] for _, jobs in drawn for job in jobs if job)]
    with styled(name):
        figure = figure_of(1.1 + 0.24 * rows, left=0.1, bottom=0.85, top=0.05)
        axes, place = figure.subplots(), 0.0
        for setting, jobs in drawn:
            named(axes, place + 0.25, setting.name + setting.mark)
            place += 0.9
            for number, job in enumerate(jobs):
                if job:
                    shares = {part: job["parts"][part] / size for part in parts}
                    _stacked(axes, place, shares, longest / size, OF_A_JOB)
                    _beside(axes, place, sum(shares.values()), _job_label(job, number))
                else:
                    _beside(axes, place, 0.0, "…")
                place += 1
        _finish(figure, axes, place, parts, OF_A_JOB)
        axes.set_xlim(0, 1.45 * longest / size)  # room for the words beside the bars
        axes.set_xlabel(f"{unit} since the job began")
        return svg_of(figure, name)


def _shown(jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The jobs of a run that are drawn; None stands for those that are left out."""
    return list(jobs) if len(jobs) <= MOST_JOBS else [*jobs[: MOST_JOBS - 2], None, jobs[-1]]


def _job_label(job: Mapping[str, Any], number: int) -> str:
    label = f"job {job['attempt']}" + (f", to step {job['last']:,}" if job["last"] is not None else ", killed")
    return label + (f"; queued {duration(job['queued'])}" if job["queued"] is not None else "")


def _stacked(axes: Axes, place: float, parts: Mapping[str, float], whole: float, order: Mapping[str, str]) -> None:
    """A bar of these parts, one after the other; those that are wide enough have their share in them."""
    left, total = 0.0, sum(parts.values())
    for part, width in parts.items():
        colour = PARTS[list(order).index(part)]
        axes.barh([place], [width], left=left, height=0.62, color=colour, edgecolor=LINE, linewidth=0.4)
        if whole and width / whole >= LEAST_LABEL:
            label = f"{100 * width / total:.0f} %"
            axes.text(left + width / 2, place, label, fontsize=6.5, color=ON_PARTS, ha="center", va="center")
        left += width


def _beside(axes: Axes, place: float, at: float, text: str) -> None:
    axes.annotate(
        text, (at, place), (4, 0), textcoords="offset points", fontsize=7, color=MUTED, va="center", ha="left"
    )


def _finish(figure: Figure, axes: Axes, rows: float, parts: Sequence[str], order: Mapping[str, str]) -> None:
    """What the bars' plots share: no vertical axis, and a key of their parts below."""
    in_rows(axes, rows + 0.1, first=-0.6, ticks=5)
    key = [Patch(color=PARTS[list(order).index(part)], label=order[part]) for part in parts]
    figure.legend(handles=key, loc="lower left", ncols=4, fontsize=7.5, frameon=False, borderaxespad=0.1,
                  columnspacing=1.2, handlelength=1.2)  # fmt: skip


def unobserved(settings: Sequence[SettingResult]) -> list[str]:
    """The names of the settings that were timed, and of which no step was observed."""
    return [each.name for each in settings if each.row["samples_per_second"] and not _observed(each)]


def _observed(setting: SettingResult) -> bool:
    return setting.row["step_compute_fraction"] is not None


def step_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """What a sample's time goes to in each setting, as stacked bars, as SVG; None where no step was observed."""
    drawn = [each for each in settings if each.row["samples_per_second"] and _observed(each)]
    if not drawn:
        return None
    seconds = [1e6 / each.row["samples_per_second"] for each in drawn]
    parts = [part for part in OF_A_STEP if any(each.row[part] for each in drawn)]
    with styled(name):
        figure = figure_of(1.1 + 0.44 * len(drawn), left=0.1, bottom=0.85, top=0.05)
        axes = figure.subplots()
        for place, (setting, whole) in enumerate(zip(drawn, seconds, strict=True)):
            named(axes, 1.8 * place + 0.25, setting.name + setting.mark)
            shares = {part: whole * (setting.row[part] or 0.0) for part in parts}
            _stacked(axes, 1.8 * place + 0.8, shares, max(seconds), OF_A_STEP)
        _finish(figure, axes, 1.8 * len(drawn) - 0.1, parts, OF_A_STEP)
        axes.set_xlabel("microseconds of a step for each sample of its batch")
        return svg_of(figure, name)
