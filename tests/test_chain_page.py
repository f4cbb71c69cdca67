"""The page of a script that is a chain, word for word: its script, its command, and what is printed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from living import words
from pages import block, blocks, masked

PAGE = "docs/make-your-script-a-chain.md"
ROOT = Path(__file__).resolve().parents[1]


def typed(folder: Path, text: str, *, stop: bool = False) -> tuple[int, str]:
    """The status of the page's command, and what it prints. `stop`: a rank gets SIGTERM after the first epochs."""
    installed = folder / "bin" / "relay-chain"  # as the wheel's entry point
    installed.parent.mkdir(exist_ok=True)
    installed.write_text(f"#!{sys.executable}\nimport sys\nfrom relay.chain.command import main\nsys.exit(main())\n")
    installed.chmod(0o755)
    path = f"{installed.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    job = subprocess.Popen(
        shlex.split(text), cwd=folder, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        while stop and job.poll() is None:
            ranks = [each for each in psutil.Process(job.pid).children(recursive=True) if "-u" in words(each)]
            if (folder / "checkpoints" / "lock").exists() and ranks:
                job.send_signal(signal.SIGTERM)
                break
            time.sleep(0.02)
        printed, _ = job.communicate(timeout=240)
    finally:
        job.terminate()
        job.wait(60)
    return job.returncode, printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_script_on_the_page_is_a_chain(tmp_path: Path) -> None:
    """That its loops end bit for bit as uncut ones is shown in `test_chain_loops.py`."""
    (script,) = [each.text for each in blocks(PAGE) if each.language == "python"]
    assert script.count("  # 1:") + script.count("  # 2:") + script.count("  # 3:") == 3
    (command,) = [each.text for each in blocks(PAGE) if each.text.startswith("relay-chain torchrun")]
    # A step that a signal can meet; the page's own take less than a millisecond.
    slower = script.replace(
        "        run.after(step)", "        __import__('time').sleep(0.02)\n        run.after(step)"
    )
    (tmp_path / "train.py").write_text(slower)
    status, printed = typed(tmp_path, command, stop=True)
    assert (status, "Traceback" in printed) == (75, False), printed
    stops = block(PAGE, "relay.chain: stops after step").text
    assert masked(stops)[0] in masked(printed)
    status, printed = typed(tmp_path, command)
    assert (status, "trained 160 steps in 10 epochs" in printed) == (0, True), printed
    assert masked(block(PAGE, "relay.chain: goes on from step").text)[0] in masked(printed)
    assert torch.load(tmp_path / "net.pt", weights_only=True)
