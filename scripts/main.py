"""The command line `relay` without installation, as jobs start it: it imports from its own folder before any other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from relay.commands import main

if __name__ == "__main__":
    main()
