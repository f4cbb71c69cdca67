"""What is read of a command's output, and of what it reports of itself."""

import io
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.chain import telling
from relay.script.observed import Observed
from relay.script.output import END_LINES, MOST_BYTES, Output
from relay.script.steps import Steps
from relay.spec.script import Script, compiled


def observed(place: Path, counts: str = "samples", batch: int = 10, **read: str) -> Observed:
    script = Script(command=("x",), read=read, counts=counts, reported=not read)  # type: ignore[arg-type]
    return Observed(script, batch, 2, place / "report")


THOUSANDS = {"12.3k": 12_300, "1_234": 1234, "1'234.5": 1234.5, "2M": 2e6}
UNITS = {"1.20kit/s": 1200, "1.20 ksamples/s": 1200, "3Mtokens per second": 3e6, "3 Moves/s": 3, "998it/s": 998}


def speed(blocks: list[list[float]]) -> float:
    return math.fsum(block[4] for block in blocks) / math.fsum(block[2] for block in blocks)


def test_a_speed_that_is_printed_is_averaged_over_time_without_the_first(tmp_path: Path) -> None:
    seen = observed(tmp_path, samples_per_second="([0-9,.]+) img/s")
    for now, told in ((100.0, "5"), (110.0, "1,000.0"), (140.0, "2000")):
        seen.line(f"epoch: {told} img/s", now)
    blocks = seen.take()["blocks"]
    assert speed(blocks) == pytest.approx((10 * 1000 + 30 * 2000) / 40)
    assert (seen.missing(), seen.first_at) == ("", None)


@pytest.mark.parametrize(
    ("told", "value"), [("1.0", 1.0), ("0.97", 0.97), ("97.5", 0.975), ("1%", 0.01), ("100 %", 1.0)]
)
def test_an_accuracy_is_a_fraction_or_in_per_cent(tmp_path: Path, told: str, value: float) -> None:
    seen = observed(tmp_path, accuracy="accuracy ([0-9.]+)")
    seen.line(f"accuracy {told}", 100.0)
    assert seen.take()["read"] == {"accuracy": [pytest.approx(value)]}


def test_steps_that_are_printed_make_a_speed_also_where_each_epoch_counts_anew(tmp_path: Path) -> None:
    seen = observed(tmp_path, step="step ([0-9]+)")
    for now, step in ((0.0, 10), (1.0, 20), (2.0, 30), (3.0, 10), (4.0, 20)):
        seen.line(f"step {step}", 100 + now)
    blocks = seen.take()["blocks"]
    assert [block[:2] for block in blocks] == [[10, 20], [20, 30], [30, 40], [40, 50]]
    assert speed(blocks) == pytest.approx(100)


def test_a_step_that_every_rank_prints_counts_once() -> None:
    ranks, steps = 4, Steps()
    printed = [(step, rank) for step in range(1, 51) for rank in range(ranks)]
    for place in range(0, len(printed) - ranks, 3 * ranks):  # one rank is a step behind
        printed[place + ranks - 1], printed[place + ranks] = printed[place + ranks], printed[place + ranks - 1]
    # Where an epoch begins, a rank that is a step behind may be counted once more.
    assert [steps.total_after(step) for _ in range(3) for step, _ in printed][-1] == pytest.approx(150, rel=0.02)


@pytest.mark.parametrize(
    ("printed", "steps"),
    [
        ([0, 1, 2, 3, 4] * 3, 14),
        ([10, 20, 30] * 3, 90),
        ([10, 20, 20, 30, 10, 20, 20, 30], 60),  # a line that names the step again is no step
        # Two ranks with progress bars, which print 0 as soon as they begin.
        ([each for _ in range(4) for number in range(21) for each in (number, number)], 83),
        ([*(1, 1, 2, 2, 3, 3, 4, 4, 0, 4, 0, 1, 1, 2, 2, 3, 3, 4, 4), *(0, 4, 0, 1, 1, 2)], 11),
    ],
)
def test_epochs_that_count_anew(printed: list[int], steps: int) -> None:
    counted = Steps()
    assert [counted.total_after(number) for number in printed][-1] == pytest.approx(steps, abs=1)


def test_bars_that_begin_at_0_and_tell_their_length_count_each_step_once() -> None:
    counted = Steps()
    bars = [(number, length) for length in (100, 100, 80) for number in (*range(0, length, 7), length)]
    assert [counted.total_after(*printed) for printed in bars][-1] == 280
    left_early = Steps()
    bars = [(number, 1000) for _ in range(3) for number in range(11)]
    assert [left_early.total_after(*printed) for printed in bars][-1] == pytest.approx(30, abs=2)


@pytest.mark.parametrize(
    ("lines", "doubt"),
    [
        ([f"step {number}/{length}" for length in (30, 30) for number in range(length + 1)], ""),
        ([f"step {number}/{length}" for length in (30, 4, 30, 4) for number in range(length + 1)], "up to 4 and 30"),
        ([f"step {number}/{length}" for length in (110, 90, 99) for number in range(0, length + 1, 9)], ""),
        ([f"step {number}/{length}" for length in (30, 20) * 2 for number in range(length + 1)], "up to 20 and 30"),
        ([f"step {number}/{length}" for length in (30, 12) for number in range(length + 1)], "up to 12 and 30"),
        ([f"step {number}" for number in range(1, 9) for _rank in range(16)], ""),
        ([f"step {number:,}".replace(",", " ") for number in range(900, 1900, 10)], "any more after step 1000"),
        ([f"step {number:,}".replace(",", " ") for number in range(1, 5600)], "any more after step 1004"),
    ],
)
def test_what_may_count_no_steps_of_the_training_is_told(tmp_path: Path, lines: list[str], doubt: str) -> None:
    seen = observed(tmp_path, step="step {number}")
    for now, line in enumerate(lines):
        seen.line(line, 100.0 + now)
    assert doubt in seen.doubt()
    assert bool(doubt) == bool(seen.doubt())


def test_a_number_is_read_whole() -> None:
    speed = compiled("{number} img/s")
    for text, value in (("1,234.5", 1234.5), ("1.2e+04", 12000.0), ("7.", 7.0), (".5", 0.5), ("3", 3.0)):
        assert float(speed.search(f"speed {text} img/s")[1].replace(",", "")) == value, text
    assert compiled("loss {number}").search("loss nan")[1] == "nan"
    for text in ("12,5", "1.234,5", "0,123"):  # a decimal comma is not read as another number
        assert speed.search(f"{text} img/s") is None, text


@pytest.mark.parametrize(
    ("pattern", "printed", "value"),
    [
        *(("{number}[kM]? img/s", f"{number} img/s", value) for number, value in THOUSANDS.items()),
        *(("{number} ?[kM]?[a-zM]+(?:/s| per)", text, value) for text, value in UNITS.items()),
    ],
)
def test_numbers_are_read_as_people_write_them(tmp_path: Path, pattern: str, printed: str, value: float) -> None:
    """A factor may stand before a unit."""
    seen = observed(tmp_path, samples_per_second=pattern)
    seen.line(printed, 100.0)
    assert seen.whole(1.0)[0][4] == pytest.approx(value)


def test_a_step_is_a_whole_number(tmp_path: Path) -> None:
    """What is none is told, and ends no command."""
    seen = observed(tmp_path, step="step {number}")
    seen.line("step 0.05", 100.0)
    assert "read.step: '0.05' is no whole number" in seen.missing()
    seen.line("step 2.03k", 101.0)
    assert (seen.missing(), seen.step) == ("", 2030)
    assert "read.step: '0.05' is no whole number" in seen.doubt()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(telling.PLACE, str(tmp_path / "report"))
    monkeypatch.setattr(telling, "_reporters", {})
    for name in ("RANK", "SLURM_PROCID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def reported(place: Path, **more: Any) -> tuple[Observed, list[list[float]]]:
    told = telling.reporter()
    told.flush()
    seen = observed(place, **more)
    return seen, seen.take()["blocks"]


def test_a_line_in_a_loop_reports_its_samples(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(telling, "BETWEEN_SECONDS", 0.0)
    clock = iter(range(1000, 2000))
    monkeypatch.setattr(telling.time, "time", lambda: float(next(clock)))
    for _ in range(5):
        telling.step(samples=8)
    seen, blocks = reported(place)
    assert speed(blocks) == pytest.approx(16)
    assert (seen.step, seen.missing()) == (5, "")


def test_a_clock_that_is_set_back_keeps_no_line_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "FIRST_STEPS", 0)
    clock = iter(range(9000, 0, -1000))
    monkeypatch.setattr(telling, "time", SimpleNamespace(time=lambda: next(clock), monotonic=time.monotonic))
    telling.step(samples=8)
    time.sleep(telling.BETWEEN_SECONDS)
    telling.step(samples=8)
    assert len((place / "report").read_text().splitlines()) == 2


def test_a_half_written_report_is_read_on(place: Path) -> None:
    seen = observed(place, counts="steps")
    with (place / "report").open("a") as stream:
        stream.write("1.0 1 -\n2.0 ")
        stream.flush()
        assert seen.take()["step"] == 1
        stream.write("2 -\n")
        stream.flush()
        assert seen.take()["step"] == 2


def read(output: bytes) -> tuple[list[str], str]:
    lines: list[str] = []
    log = io.StringIO()
    reader = Output(io.BufferedReader(io.BytesIO(output)), lambda text, _: lines.append(text), log)  # type: ignore[arg-type]
    reader.run()
    return lines, log.getvalue()


def test_bars_and_colours_are_lines_of_plain_text() -> None:
    lines, _ = read(b"\x1b[32mstep\x1b[0m 1\rstep 2\x08\x08\x08step 3\x1b[2K\x1b[1Gstep 4\r\n\xff step 5")
    assert lines == ["step 1", "step 2", "step 3", "step 4", "\ufffd step 5"]


def test_the_log_of_gigabytes_is_bounded_and_keeps_its_end() -> None:
    line = b"x" * 1023 + b"\n"
    count = 3 * MOST_BYTES // 1024
    lines, log = read(line * count + b"the end\n")
    assert len(lines) == count + 1
    assert len(log) < MOST_BYTES + 2 * END_LINES * 1024
    assert log.endswith("the end\n")
    assert "MiB of output are left out here" in log
