"""Asks for the interpreter on the node, and lets it write which one it is, and which modules are loaded."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from relay.base import entry
from relay.environments import node


def main() -> int:
    asked, output = json.loads(sys.argv[1]), sys.argv[2]
    python = node.interpreter(asked, Path("/tmp"))
    ask = "import os, sys; print(sys.executable, os.environ.get('LOADEDMODULES'), os.uname().nodename)"
    with Path(output).open("w") as stream:
        return subprocess.run([*python, "-c", ask], stdout=stream, check=False).returncode


if __name__ == "__main__":
    entry.run(main)
