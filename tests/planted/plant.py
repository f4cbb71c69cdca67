"""Plants mistakes in copies of this checkout, one at a time, and notes which test notices each.

    .venv/bin/python tests/planted/plant.py [--only NAME …]

The faults are those of faults.yaml, and what was found is in table.md: a call tries what has no row there. A test that
fails without the fault as well does not count. Nothing is changed in the checkout but the table.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from relay.base.errors import UserError  # noqa: E402
from relay.base.files import write_text  # noqa: E402
from relay.chain.supervisor import adopt_orphans, descendants  # noqa: E402
from relay.spec.yaml_file import read  # noqa: E402

HERE = Path(__file__).parent
HEAD = """\
# Planted faults, and the test that notices each

Made by `plant.py` of `faults.yaml`: `.venv/bin/python tests/planted/plant.py`. Seconds are those until the test had
failed, its start and the tests before it included. A row tried on a busy machine has up to some 15 times as many.

| fault | what a user would suffer | caught by | seconds |
| --- | --- | --- | --- |
"""
NOT_CAUGHT = "**not caught**"
MOST_SECONDS = 300  # of each file of tests


@dataclass(frozen=True)
class Fault:
    """A mistake: `new` in the place of `old`. `tests` are files or node ids below tests/, the quickest first."""

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: list[str]

    def planted(self) -> str:
        """The file's text with the mistake in it. Raises UserError unless its place is there once."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise UserError(f"{self.name}: {self.file}: its place is there {count} times; allowed: once")
        return text.replace(self.old, self.new)


def faults() -> list[Fault]:
    """All of them, in order."""
    return [Fault(**each) for each in read(HERE / "faults.yaml", "faults.yaml")]


def noticed() -> dict[str, list[str]]:
    """The rows of the table by their faults, each as its cells."""
    lines = (HERE / "table.md").read_text(encoding="utf-8").removeprefix(HEAD).splitlines()
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
    return {row[0]: row for row in rows}


def copy(to: Path) -> None:
    """The checkout as it is, with the link to its environment, and what Python has compiled of it, to save seconds."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in [*names, *(str(path.relative_to(ROOT)) for path in (ROOT / "scripts").rglob("*.pyc"))]:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    (to / ".venv").symlink_to((ROOT / ".venv").resolve())


def failing(checkout: Path, test: str) -> str:
    """The first test that fails there, or "no end of …" where they take too long; '' where all pass."""
    pytest = [str(checkout / ".venv/bin/pytest"), "-x", "-q", "-p", "no:cacheprovider", "-m", "not long"]
    with tempfile.TemporaryDirectory(prefix="planted-") as place:
        try:
            command = [*pytest, f"--basetemp={place}/t", f"tests/{test}"]
            done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            return f"no end of {test}"
        finally:
            end_all()
    if done.returncode == 4:
        raise UserError(f"{test}: pytest knows no such test")
    if done.returncode in (0, 5):  # 5: none was chosen
        return ""
    found = re.search(r"^(?:FAILED|ERROR) tests/(\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found[1] if found else f"{test} (status {done.returncode})"


def end_all() -> None:
    """End whatever the tests have left."""
    while left := descendants(os.getpid()):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def row(fault: Fault) -> list[str]:
    """Plant a fault, run its tests in order, and say which noticed it: the cells of its row."""
    with tempfile.TemporaryDirectory(prefix="planted-") as text:
        checkout = Path(text)
        copy(checkout)
        (checkout / fault.file).write_text(fault.planted(), encoding="utf-8")
        began, also = time.monotonic(), ""
        for test in fault.tests:
            name = failing(checkout, test)
            seconds = time.monotonic() - began
            # "no end of …" is looked at with the whole file, all others with the test alone.
            if name and not (here := failing(ROOT, test if name.startswith("no end") else name)):
                break
            also += f" ({here} without the fault as well)" if name else ""
        else:
            name, seconds = NOT_CAUGHT + also, time.monotonic() - began
    return [fault.name, f"{fault.file}: {fault.why}", name, f"{seconds:.0f}"]


def main() -> int:
    """Try the faults that have no row in the table yet, and write each row at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=(), help="these faults, by name, whatever the table says")
    asked, known, rows = {*parser.parse_args().only}, faults(), noticed()
    if unknown := asked - {fault.name for fault in known}:
        raise UserError(f"--only: '{min(unknown)}' is no fault of faults.yaml")
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for fault in known:
        if fault.name not in asked if asked else fault.name in rows:
            continue
        rows[fault.name] = row(fault)
        print(*rows[fault.name], sep=" | ", flush=True)
        lines = [f"| {' | '.join(rows[each.name])} |\n" for each in known if each.name in rows]
        write_text(HERE / "table.md", HEAD + "".join(lines))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
