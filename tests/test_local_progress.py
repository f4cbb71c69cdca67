"""What a log of the driver tells of a training of this machine; a terminal has a view (`test_live_view.py`)."""

from __future__ import annotations

import time
from pathlib import Path

from local_driver import LocalDriver
from relay.driver.progress import Training, described


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
