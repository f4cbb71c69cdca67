"""`python -m relay.chain …` is `relay-chain …`."""

import sys

from .command import main

sys.exit(main())
