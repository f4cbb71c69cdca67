"""Nobody but their user reaches the place where the processes of one node find each other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from relay.launch.command_lines import command, free_port
from relay.process import meeting
from relay.process.ranks import _store
from test_processes import run

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
ROLE = """
import json, os, sys, time
from relay.process.ranks import Ranks

def main(arguments):
    ranks = Ranks.join("cpu", "gloo")
    told = [os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), os.environ.get("TORCH_RELAY_MEETING")]
    if ranks.gather(ranks.rank) == [0, 1] and ranks.rank == 0:
        print(json.dumps(told), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_no_other_user_and_no_other_node_reaches_it(tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS / "relay", tmp_path / "relay")
    (tmp_path / "relay" / "does.py").write_text(ROLE)
    words = command(run(launcher="direct"), [sys.executable], ["does", str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        told = started.stdout.readline()
        try:
            address, port, folder = json.loads(told)
            every = psutil.Process(started.pid).children(recursive=True)
            listening = [
                one.laddr.ip
                for process in (psutil.Process(started.pid), *every)
                for one in process.net_connections()
                if one.status == psutil.CONN_LISTEN
            ]
            mode = stat.S_IMODE(Path(folder).stat().st_mode)
            if os.getuid() == 0:  # which can be another user
                looked = subprocess.run(["ls", folder, f"{folder}/ranks"], user=65534, capture_output=True, text=True)
                assert looked.stdout == ""
                assert looked.stderr.count("Permission denied") == 2
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=5)
        finally:
            started.send_signal(signal.SIGTERM)
            for process in psutil.Process(started.pid).children(recursive=True):
                process.kill()
    assert (address, set(listening) - {"127.0.0.1"}, mode) == ("127.0.0.1", set(), 0o700)
    assert not Path(folder).exists()
    assert str(meeting.MEMORY) in folder or not meeting.MEMORY.exists()


def test_of_several_nodes_it_is_reached_at_their_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own server listens on all interfaces."""
    port = free_port("")
    for name, value in {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    store = _store(0, 1)
    assert store is not None
    socket.create_connection(("127.0.0.2", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
