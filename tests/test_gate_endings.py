"""Which ends of a gate's processes are a verdict: not those that others may have caused, nor those after it."""

import os
import signal
from pathlib import Path

import pytest

from gate_runs import Gates
from living import when
from own_gates import judged, own_strategy
from relay.base.ending import FAULT, INTERRUPTED
from relay.equivalence.verdict import FAULTED
from relay.launch import launcher
from relay.launch.launcher import _wait_for

# Faults that others may have caused, and what is said of a strategy that meets one again, alone.
ILLEGAL = "CUDA error: an illegal memory access was encountered"
FAULTS = {
    "cuda": (f"raise RuntimeError('{ILLEGAL}')", f"RuntimeError: {ILLEGAL}"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "its processes were killed, or crashed without a word"),
}
# At its first attempt alone, or always.
MET = """
        import signal
        met = Path({met!r})
        if {always} or not met.exists():
            met.touch()
            {fault}
"""

pytestmark = pytest.mark.slow

AT_THE_END = """
    @classmethod
    @contextmanager
    def service(cls, run_id, device):
        yield
        {what}
"""


def test_a_process_that_aborts_leaves_none(gates: Gates, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = own_strategy(tmp_path / "strategies", "aborts", more=AT_THE_END.format(what="os.abort()"))
    found = judged(gates, path)
    assert found.status == INTERRUPTED
    assert found.verdict is None
    assert "its processes ended without a word (status -" in capfd.readouterr().err


def test_a_process_that_raises_after_the_verdict_is_not_equivalent(gates: Gates, tmp_path: Path) -> None:
    path = own_strategy(tmp_path / "strategies", "raises", more=AT_THE_END.format(what="raise RuntimeError('late')"))
    found = judged(gates, path)
    assert found.status == 0
    assert found.verdict["equivalent"] is False
    line = path.read_text().partition("raise RuntimeError")[0].count("\n") + 1
    assert found.verdict["problems"] == [f"it cannot run this training: raises.py:{line}: RuntimeError: late"]


@pytest.mark.parametrize(("fault", "always"), [("cuda", False), ("SIGKILL", True)])
def test_a_fault_of_others_is_a_verdict_when_met_alone(gates: Gates, tmp_path: Path, fault: str, always: bool) -> None:
    code, told = FAULTS[fault]
    more = MET.format(met=str(tmp_path / "met"), always=always, fault=code)
    path = own_strategy(tmp_path / "strategies", "faulty", more=more)
    first = judged(gates, path)
    assert (first.status, first.verdict) == (INTERRUPTED, None)
    second = judged(gates, path, attempt=2)
    assert second.status == 0
    assert second.verdict["equivalent"] is not always
    blamed = [f"it cannot run this training, and failed twice, the second time alone: {told}"]
    assert second.verdict["problems"] == (blamed if always else [])
    assert not second.output.with_name(FAULTED).exists()


def test_a_gate_that_was_stopped_after_a_fault_is_not_to_blame(gates: Gates, tmp_path: Path) -> None:
    """As by Ctrl-C in its second try."""
    path = own_strategy(tmp_path / "strategies", "unlucky", more=f"        {FAULTS['cuda'][0]}")
    assert judged(gates, path).status == INTERRUPTED
    stopped = judged(gates, path, attempt=2, start=lambda *_: -signal.SIGTERM)
    assert (stopped.status, stopped.verdict) == (INTERRUPTED, None)


def test_broken_hardware_is_never_the_strategys(gates: Gates, tmp_path: Path) -> None:
    more = "        raise RuntimeError('CUDA error: uncorrectable ECC error encountered')"
    path = own_strategy(tmp_path / "strategies", "unlucky", more=more)
    for attempt in (1, 2, 3):
        found = judged(gates, path, attempt=attempt)
        assert (found.status, found.verdict) == (INTERRUPTED, None)


def test_a_launcher_that_was_stopped_says_so_though_unheeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends badly after a signal was stopped by it."""
    monkeypatch.setattr(launcher, "PATIENCE_SECONDS", 0.5)
    deaf = f"trap '' TERM; touch {tmp_path}/begun; sleep 600 & wait; sleep 600"
    when((tmp_path / "begun").exists, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert _wait_for(["sh", "-c", deaf], os.environ) == -signal.SIGTERM
    assert _wait_for(["false"], os.environ) == 1


WAITING = """
    def train_step(self, batch):
        import threading
        from relay.run_folder import stalled
        stalled.LONGEST_SECONDS = 2.0
        threading.Event().wait()
"""


def test_a_gate_that_hangs_says_where(gates: Gates, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = own_strategy(tmp_path / "strategies", "waits", more=WAITING)
    found = judged(gates, path)
    assert (found.status, found.verdict) == (INTERRUPTED, None)
    told = capfd.readouterr().err
    assert "Stalled: no step has ended in 2 s" in told
    assert "threading.Event().wait()" in told
    again = judged(gates, path, attempt=2)
    assert (again.status, again.verdict) == (FAULT, None)
    assert "the log shows where each rank was" in (told := capfd.readouterr().err)
    assert "failed twice, the second time alone" in told
