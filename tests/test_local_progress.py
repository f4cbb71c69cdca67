"""What the terminal shows while a training of this machine runs."""

from __future__ import annotations

import os
import pty
import re
import signal
import time
from pathlib import Path

import pytest

from local_driver import LocalDriver, until
from relay.driver.progress import Training, described


@pytest.mark.slow
def test_a_terminal_shows_epoch_speed_and_expected_end_in_one_line(tmp_path: Path) -> None:
    driver = LocalDriver(tmp_path, {"comparisons": [{"strategy": "cpu"}], "checkpoint_minutes": 0.01})
    ours, theirs = pty.openpty()
    try:
        process = driver.start(driver.trained, stream=theirs)
        os.close(theirs)
        seen = ""
        while not (
            found := re.search(r"\r\x1b\[Kepoch ([\d.]+) of 5000, [\d,]+ samples/s, ends about [^:]*\d\d:\d\d", seen)
        ):
            assert process.poll() is None, seen
            seen += os.read(ours, 4096).decode()
        assert float(found.group(1)) > 0
        first, *_ = re.findall(r"Job \d+: (Training .*)\r\n    log: ([\w./-]+)", seen)
        job = f"Training cpu (1 proc, 1 thread, resident) [{driver.run.id}]"
        assert first[0] == f"{job} from step 0 to {driver.run.length.total_steps}"
        assert (tmp_path / first[1]).is_file()
        status, printed = driver.call("status")
        assert status == 0, printed
        assert re.search(r"(?m)^cpu .* running +\d+% +0 of 1 +[\d,]+ +\d", printed), printed
        assert "runs: 1 running; " in printed
        process.send_signal(signal.SIGTERM)
        until(lambda: process.poll() is not None, "the driver has ended")
    finally:
        os.close(ours)
        driver.end()


def test_the_end_is_reckoned_from_the_time_that_steps_took_with_all_between_them(tmp_path: Path) -> None:
    driver = LocalDriver(tmp_path, {"comparisons": [{"strategy": "cpu"}]})
    run = driver.run
    run.write(tmp_path / "results" / "runs" / run.id / "run.json")
    records = driver.work / "records" / "attempt-0001.jsonl"
    records.parent.mkdir(parents=True)
    training = Training(run.id, 300, "Training cpu")
    assert described(training, tmp_path / "results") == ""
    now = time.time()
    records.write_text(f'{{"time": {now - 100}, "start": 100}}\n')
    assert described(training, tmp_path / "results") == ""
    with records.open("a") as stream:
        stream.write(f'{{"time": {now}, "blocks": [[180, 190, 5.0, 0.1], [190, 200, 5.0, 0.1]]}}\n{{"time": 1, "blo')
    end = time.strftime("%H:%M", time.localtime(now + 100))  # 100 steps took 100 s, 100 are left
    expected = f"epoch {200 / run.length.steps_per_epoch:.1f} of 5000, 128 samples/s, ends about {end}: Training cpu"
    assert described(training, tmp_path / "results") == expected
