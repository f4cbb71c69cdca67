"""What only a GPU can show, on a machine with one GPU and no network: one command, minutes, one archive.

    python3 scripts/gpu_day.py --python PYTHON --wheels FOLDER --nccl FOLDER --pages FOLDER --output gpu-day.tar.gz

PYTHON has torch for its GPU. FOLDER has wheels of what that Python lacks; they are unpacked into a folder of their own,
and PYTHON is left as it is. The NCCL lets ranks share the GPU (docs/gpu-check.md). The archive is there from the first
minute on, and grows: `summary.md` has a line for each part. Needs Python 3.11 and nothing else.
"""

import argparse
import concurrent.futures
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import gpu_day_archive

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "config/gpu-day"
GRACE_SECONDS = 10.0  # to write a page, after SIGTERM
LAST_SECONDS = 20.0  # for the archive
MACHINE = """
import json, platform, torch
from relay.process.gpus import nccl_version
one = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
print(f"{one}, Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL",
      ".".join(map(str, nccl_version() or ("none",))))
"""
# An environment that has all packages that there are, for each further stack whose packages are among them.
STACKS = """
import contextlib, importlib.util, subprocess, sys
from pathlib import Path
from relay.environments import overlay, versioned
def install(folder, lock):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    paths = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (versioned.site_packages(folder) / overlay.SEES_DRIVER).write_text("\\n".join(paths) + "\\n")
for lock in map(Path, sys.argv[1:]):
    if importlib.util.find_spec(lock.stem):
        with contextlib.redirect_stdout(sys.stderr):
            versioned.have(overlay.place(lock), install, stack=lock.stem, parts=overlay._optional_parts(lock))
        print(lock.stem)
"""


@dataclass
class Part:
    """A command. `seconds`: how long it may take. `without`: why it cannot run. `folder`: where it does, below `work`.

    `outcome`, `took` and `said` are found.
    """

    name: str
    words: Sequence[object] = ()
    seconds: float = 600.0
    without: str = ""
    folder: str = "."
    outcome: str = "not begun"
    took: float = 0.0
    said: str = ""


class Day:
    """The parts, what they left, and the archive of it. `work` is a folder for all of it."""

    def __init__(self, given: argparse.Namespace, work: Path) -> None:
        self.given, self.work = given, work
        self.end = time.monotonic() + given.seconds - LAST_SECONDS
        self.python = work / "venv/bin/python"
        self.machine = ""
        self.parts: list[Part] = []
        self.variables = {"XDG_CACHE_HOME": str(work / "cache"), "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}
        self.archiving = threading.Lock()
        self.running: list[subprocess.Popen[bytes]] = []

    # The environment

    def prepare(self) -> None:
        """A virtual environment beside the given Python, its wheels, the NCCL, and the further stacks."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            nccl = pool.submit(self._unpack_nccl)
            base = self.given.python
            subprocess.run([base, "-m", "venv", "--without-pip", self.work / "venv"], check=True)
            own = next((self.work / "venv").glob("lib/python3*/site-packages"))
            program = (
                "import sys; print(*(p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))), sep='\\n')"
            )
            theirs = subprocess.run([base, "-c", program], check=True, capture_output=True, text=True).stdout
            for wheel in sorted(self.given.wheels.glob("*.whl")) if self.given.wheels else ():
                _unpack(wheel, own)
            (own / "torch_relay.pth").write_text(f"{theirs}{ROOT / 'workflow/plugins'}\n")
            folder = nccl.result()
        self.variables |= {"TORCH_RELAY_NCCL": str(folder)} if folder else {}
        locks = [ROOT / f"envs/{name}.txt" for name in ("deepspeed", "lightning", "horovod")]
        stacks = self._output("-c", STACKS, *map(str, locks))
        self.machine = self._output("-c", MACHINE) + f"; stacks: torch {' '.join(stacks.split())}"

    def _unpack_nccl(self) -> Path | None:
        """The folder of the NCCL, which may be packed by xz."""
        if self.given.nccl is None:
            return None
        folder, packed = self.work / "nccl", next(self.given.nccl.rglob("libnccl.so.2.xz"), None)
        if packed is None:
            return self.given.nccl.resolve()
        folder.mkdir()
        with lzma.open(packed) as source, (folder / "libnccl.so.2").open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
        return folder

    def _output(self, *words: str) -> str:
        environment = os.environ | self.variables | {"PYTHONPATH": str(ROOT / "scripts")}
        done = subprocess.run([self.python, *words], env=environment, capture_output=True, text=True, check=False)
        return (done.stdout if done.returncode == 0 else done.stderr[-300:]).strip()

    # The parts

    def lanes(self) -> list[list[Part]]:
        """What nothing is timed in: each lane's parts run one after the other, beside the other lanes'."""
        # Their ranks take turns, without MPS: a rank that fails ends no other's.
        prove = [self.python, ROOT / "scripts/main.py", "prove", "--share-gpu", "--limit-seconds", "90"]
        tasks = [ROOT / f"tests/tasks/{name}.py" for name in ("gpt2", "vae", "lstm", "resnet50")]
        models = [word for task in tasks for word in ("--task", task)]
        chosen = [word for name in ("single_gpu", "ddp", "fsdp") for word in ("--strategy", name)]
        selftest = [*self._snakemake("selftest"), "selftest"]
        ways = [CONFIGS / "lenet.yaml", CONFIGS / "gpt.yaml"]
        own = [ROOT / "tests/tasks/every_strategy.yaml", *models, *chosen]
        first = Part("self-test, in small", [*selftest, "--configfile", CONFIGS / "first.yaml"], 220)
        return [
            [first, Part("self-test", selftest)],
            [Part("ways to compute, schedules, ZeRO", [*prove, *ways], folder="ways")],
            [Part("models of one's own", [*prove, *own], folder="models")],
        ]

    def alone(self) -> list[Part]:
        """What is timed: nothing runs beside it."""
        pages = self.given.pages
        missing = "" if pages and any(pages.glob("000_*.txt")) else "name the folder with the centres' pages by --pages"
        centres = [self.python, ROOT / "benchmarks/centres.py", "--page", "cifar10-gpu", "--made-up", "--rounds", "1"]
        centres += ["--pages", pages.resolve() if pages else ""]
        resnet = ["--network", "resnet18_cifar10", "--global-batch-size", "256", "--epochs", "3"]
        script = [*self._snakemake("script"), "--configfile", self.work / "script/script.yaml"]
        return [
            Part("LeNet beside the page's script", [*centres, "--epochs", "20"], 90, missing),
            Part("ResNet-18 beside the page's script", [*centres, *resnet], 90, missing),
            Part("a script as it stands", script, 60),
        ]

    def _snakemake(self, folder: str) -> list[object]:
        """The workflow, in a folder of its own."""
        words = [self.python, "-P", "-m", "snakemake", "--snakefile", ROOT / "Snakefile"]
        return [*words, "--profile", ROOT / "profiles/local", "--directory", self.work / folder]

    def run(self, part: Part, until: float) -> None:
        """Run a part until it ends, its seconds are over, or that time."""
        limit = min(part.seconds, min(until, self.end) - time.monotonic())
        log, folder = self.work / f"{re.sub('[^a-z0-9]+', '-', part.name.lower())}.log", self.work / part.folder
        folder.mkdir(exist_ok=True)
        if part.without or limit < 2 * GRACE_SECONDS:
            part.outcome = f"left out: {part.without or 'no time was left'}"
            return
        part.outcome, began = "runs", time.monotonic()
        with log.open("wb") as output:
            started = subprocess.Popen(
                [str(word) for word in part.words],
                cwd=folder, env=os.environ | self.variables, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self.running.append(started)
            cut = _wait(started, limit - GRACE_SECONDS)
            self.running.remove(started)
        part.took = time.monotonic() - began
        part.outcome = "cut" if cut else "worked" if started.returncode == 0 else f"failed, status {started.returncode}"
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        part.said = lines[-1][:200] if lines else ""
        print(f"{part.name}: {part.outcome}, {part.took:.0f} s: {part.said}", flush=True)
        self.archive()

    def go(self) -> None:
        """All of it. What is timed comes last, and has its time."""
        lanes, alone = self.lanes(), self.alone()
        self.parts = [*(part for lane in lanes for part in lane), *alone]
        shutil.copytree(CONFIGS, self.work / "script")
        timed = sum(part.seconds for part in alone if not part.without)
        until = max(self.end - timed, time.monotonic() + (self.end - time.monotonic()) / 2)
        threading.Thread(target=self._keep_archiving, daemon=True).start()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for lane in lanes:
                pool.submit(self._run_all, lane, until)
        for part in alone:
            self.run(part, self.end)

    def _run_all(self, lane: list[Part], until: float) -> None:
        for part in lane:
            self.run(part, until)

    def stop(self, *_: object) -> None:
        """End what runs, and begin nothing more."""
        self.end = time.monotonic()
        for started in self.running:
            started.terminate()

    # The archive

    def _keep_archiving(self) -> None:
        while True:
            self.archive()
            time.sleep(30)

    def archive(self) -> None:
        """Write the archive of what is there, in one step."""
        with self.archiving:
            (self.work / "summary.md").write_text(self.summary(), encoding="utf-8")
            gpu_day_archive.write(self.work, self.given.output)

    def summary(self) -> str:
        """A line for each part."""
        lines = ["# A day with a GPU\n", f"{self.machine}\n", "| part | outcome | s | its last line |"]
        lines.append("| --- | --- | --- | --- |")
        for part in self.parts:
            lines.append(f"| {part.name} | {part.outcome} | {part.took:.0f} | {part.said.replace('|', '/')} |")
        return "\n".join(lines) + "\n"


def _unpack(wheel: Path, site: Path) -> None:
    """A wheel's files, where Python finds them. Its programs are not needed: modules are run."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    for data in site.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)
        shutil.rmtree(data)


def _wait(started: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a command, and end it and its processes after so many seconds; whether it was ended."""
    with suppress(subprocess.TimeoutExpired):
        started.wait(seconds)
        return False
    started.terminate()  # the driver ends its jobs, and writes its page
    with suppress(subprocess.TimeoutExpired):
        started.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    return True


def main() -> int:
    """Parse the command line, do all that fits into the time, and leave the archive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch (this one)")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of what that Python lacks")
    parser.add_argument("--nccl", type=Path, help="a folder with libnccl.so.2 (or .xz) 2.30 or newer")
    parser.add_argument("--pages", type=Path, help="a folder with the centres' pages, for the rows beside their script")
    parser.add_argument("--seconds", type=float, default=540, help="when all has ended (540)")
    parser.add_argument("--output", type=Path, default=Path("gpu-day.tar.gz"), help="the archive (gpu-day.tar.gz)")
    given = parser.parse_args()
    given.output = given.output.resolve()
    with tempfile.TemporaryDirectory(prefix="gpu-day-", ignore_cleanup_errors=True) as work:
        day = Day(given, Path(work))
        began = time.monotonic()
        signal.signal(signal.SIGTERM, day.stop)
        signal.signal(signal.SIGINT, day.stop)
        day.prepare()
        print(f"{day.machine}; ready in {time.monotonic() - began:.0f} s", flush=True)
        try:
            day.go()
        finally:
            day.archive()
            print(day.summary(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
