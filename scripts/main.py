"""The command line `relay` without installation, as jobs start it: it imports from its own folder before any other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
try:
    from relay.commands import main
except KeyboardInterrupt:  # Ctrl-C, which a terminal sends to local rules, too
    sys.exit(130)

if __name__ == "__main__":
    main()
