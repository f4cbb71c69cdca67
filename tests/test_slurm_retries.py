"""What the driver makes of jobs that fail on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_slurm import MiniSlurm
from slurm_runs import site_file, slurm_snakemake

SLOW = '''
"""Half a second for each step."""

import time

from relay.strategies.base import Requirements, Strategy


class Slow(Strategy):
    requirements = Requirements(processes="one")

    def build(self):
        self.build_whole()

    def train_step(self, inputs, targets):
        time.sleep(0.5)
        return super().train_step(inputs, targets)
'''


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stop_before_the_time_limit_is_a_line_and_no_error(cluster: MiniSlurm, tmp_path: Path) -> None:
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "slow.py").write_text(SLOW)
    config = {
        "repeats": 1,
        "epochs": 6,
        "runtime_minutes": 1,
        "probe": {"minutes": 1},
        "strategy_folders": [str(tmp_path / "strategies")],
    }
    config |= {
        "device": "cpu",
        "task": "lenet-digits",
        "comparisons": [{"strategy": "slow"}],
    }
    site = site_file(tmp_path)  # 132 steps, in jobs of 60 s
    status, printed = slurm_snakemake(cluster, tmp_path, config, "slow", "--until", "segment", site=site)
    assert status == 0, printed
    assert "of 132 (deadline); goes on with attempt 2\n" in printed
    for noise in ("FAILED", "Error in rule", "Traceback", "SLURM status"):
        assert noise not in printed
