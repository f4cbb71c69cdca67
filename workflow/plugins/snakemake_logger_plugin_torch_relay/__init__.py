"""What this project says on the terminal in Snakemake's place: `--logger torch-relay`, which it adds to its own calls.

Snakemake imports each package of such a name before it reads the command line, so that `relay.driver.first_look` looks
at a call first: what Snakemake answers to a mistake there is a traceback, or its whole list of options. A job's
Snakemake (`--mode`), and one of another workflow, go on as if this package were not there. `pip install -e .`, a part
of `make install`, puts this folder on the path.
"""

import argparse
import os
import sys
from logging import LogRecord
from pathlib import Path

from snakemake_interface_logger_plugins.base import LogHandlerBase

__all__ = ["LogHandler"]
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


class LogHandler(LogHandlerBase):
    """Has `relay.driver.terminal` write to the terminal, as the process logs.

    Snakemake hands its plugins what is logged through a queue, in another thread. There, lines would come after those
    that local rules print, and the executor's word on a failed job after the decision on its retry.
    """

    writes_to_stream = True  # so that Snakemake does not
    writes_to_file = has_filter = has_formatter = needs_rulegraph = False

    def __post_init__(self) -> None:
        sys.path.append(str(SCRIPTS))  # this project's Snakefile has put it first
        from snakemake.logging import logger

        from relay.driver.terminal import Terminal

        logger.addHandler(Terminal(self.common_settings))

    def emit(self, record: LogRecord) -> None:
        """What the queue has was written before."""


def _called() -> bool:
    """Whether this process is Snakemake's command line, as its script or by `python -m snakemake`."""
    return Path(sys.argv[0]).name == "snakemake" or Path(sys.argv[0]).parts[-2:] == ("snakemake", "__main__.py")


def _root() -> Path | None:
    """The folder of this project whose Snakefile is called, or none at all; None for another's, and in a job."""
    from snakemake.api import resolve_snakefile

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-s", "--snakefile", type=Path)
    parser.add_argument("--mode")
    try:
        given, _ = parser.parse_known_args()
    except SystemExit:
        return None
    if given.mode:
        return None
    snakefile = resolve_snakefile(given.snakefile, allow_missing=True)
    root = Path(snakefile).resolve().parent if snakefile else SCRIPTS.parent
    return root if (root / "workflow" / "plugins" / __name__).is_dir() and _is_trusted(root) else None


def _is_trusted(root: Path) -> bool:
    """Whether it is the checkout of this file, or one of this user's: in another's, looking would run their code."""
    return Path(__file__).resolve().is_relative_to(root) or root.stat().st_uid == os.getuid()


if _called() and (root := _root()):
    sys.path.insert(0, str(root / "scripts"))
    from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

    from relay.driver.first_look import check

    LoggerPluginRegistry().collect_plugins()  # it is in the midst of that, and `--logger` allows only those that it has
    check(sys.argv[1:])
