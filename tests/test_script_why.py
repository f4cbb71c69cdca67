"""Why a command failed, as its user is told: the error that counts of its output, and what helps."""

from pathlib import Path

import pytest

from relay.base.ending import Ending
from relay.driver.retries import block
from relay.script import why
from relay.spec.script import Script

TRACEBACK = "Traceback (most recent call last):\n  File 'train.py', line 3, in <module>\n    go()\n    ^^^^\n"
LOST = "torch.distributed.DistBackendError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (TRACEBACK + "ValueError: width is -1\nmore of it", "ValueError: width is -1"),
        (TRACEBACK + "KeyboardInterrupt", "KeyboardInterrupt"),
        (f"{TRACEBACK}KeyError: 'a'\n\nDuring handling of it:\n\n{TRACEBACK}my.Own: it is b\n", "my.Own: it is b"),
        (f"{TRACEBACK}ValueError: the cause\n{TRACEBACK}{LOST}\n", "ValueError: the cause"),
        ("".join(f"[rank1]: {line}\n" for line in f"{TRACEBACK}ValueError: x".splitlines()), "ValueError: x"),
        ("usage: train.py [-h]\ntrain.py: error: no such argument: --x", "train.py: error: no such argument: --x"),
        ("step 1\nrun.sh: line 2: gpt: command not found\n", "run.sh: line 2: gpt: command not found"),
        ("loss 3.1\nalmost\n", ""),
    ],
)
def test_the_error_that_counts(output: str, error: str) -> None:
    assert why.error_in(output.splitlines()).partition("\n")[0] == error


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        ("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'", "asks for a GPU, and none is here"),
        ("urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>", "fetch it before"),
        ("ModuleNotFoundError: No module named 'tiktoken'", "`packages`"),
        ("ModuleNotFoundError: No module named 'torch.distributed.pipeline'", "strategy pipeline"),
        ("ModuleNotFoundError: No module named 'beside'", "links: {../beside.py: ../beside.py}"),
        ("run.sh: line 2: gpt: command not found", "`packages`"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/a/x.bin'", "links: {data: data}"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'FOLDER/sub/a.json'", "{sub/a.json: sub/a.json}"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/scratch/x'", "a whole path that the nodes can see"),
        ("python: can't open file 'FOLDER/gpt.py': [Errno 2] No such file or directory", "{gpt.py: ITS_PLACE}"),
        ("OSError: [Errno 28] No space left on device", "raise your quota"),
        ("KeyError: 'LOCAL_RANK'", "write `torchrun`"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", "smaller batch"),
        ("ValueError: width is -1", ""),
    ],
)  # fmt: skip
def test_what_helps(error: str, helps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "deep" / "run"
    for made in ("home/data/a", "home/sub", "home/src", "up", "deep/run/sub"):
        (tmp_path / made).mkdir(parents=True)
    for made in ("home/sub/mine.py", "home/sub/a.json", "home/src/net.py", "beside.py"):
        (tmp_path / made).touch()
    monkeypatch.chdir(home)
    script = Script(command=("python", "sub/train.py"), file="sub/train.py", folder="sub", files=("sub/train.py",))
    assert helps in (told := why.remedy(error.replace("FOLDER", str(folder)), script, folder))
    assert bool(told) == bool(helps)


def test_a_failure_is_one_block_with_its_error_first() -> None:
    told = Ending(1, "run a failed: KeyError: 'a'; the command ended with status 1\n| Traceback\n|   go()", "help")
    lines = [line.split(maxsplit=1)[0] for line in block("Running a", told, "", Path("a.log")).splitlines()]
    assert lines == ["FAILED:", "what", "remedy", "log", "output", "go()"]
