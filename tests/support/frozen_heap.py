"""Imported last by a server of forks: what it has imported stays, and no fork looks through it for garbage.

That would take each fork a third of a second, and a copy of all that it shares with the server.
"""

import gc

gc.collect()
gc.freeze()
