"""What an error's text says: of which kind it is, what the user can do, and whether another try is worthwhile.

The one table for Python's processes, their jobs, the probe and preflight; the C++ program has its own few causes.
torch raises plain RuntimeErrors for most of this, and one type, DistBackendError, for everything that NCCL says: only
the text tells them apart. `tests/known_faults.yaml` holds each row against messages that people have really met.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from relay.base.ending import FREE_SPACE
from relay.base.errors import UserError


class Kind(StrEnum):
    """What has happened. The comment says whether the job is tried again."""

    LOST_PEER = "lost peer"  # yes: another process is gone or silent, and it has the reason
    BUSY = "busy"  # yes: something else was at work there
    HARDWARE = "hardware"  # yes, on another node
    DEVICE = "device"  # yes: a GPU has ended the process's work, and another process's fault may have ended it
    HANG = "hang"  # only where a training came further meanwhile: else each try would cost the group's timeout
    MEMORY = "memory"  # no; to a probe it says that the size does not fit
    SETUP = "setup"  # no: a retry would find the same


AGAIN = (Kind.LOST_PEER, Kind.BUSY, Kind.HARDWARE, Kind.DEVICE)


@dataclass(frozen=True)
class Known:
    """A row: its kind, the thing that is wrong in a word or two, what the text has in it, and the remedy."""

    kind: Kind
    name: str
    pattern: str
    remedy: str


_GPU_MEMORY = "take a smaller batch (`snakemake probe` finds the largest that fits) or a larger GPU"

# The first row that fits counts: NCCL's texts often hold the words of several.
TABLE = (
    Known(
        Kind.HARDWARE,
        "GPU hardware",
        r"[Uu]ncorrectable (ECC|NVLink) error|ECC_UNCORRECTABLE|fallen off the bus|GPU is lost|busy or unavailable|"
        r"[Hh]ardware [Ss]tack [Ee]rror|(CUDA error:|Cuda failure 999) '?unknown error|"
        r"system not yet initialized|\bXid\b",
        "tell your site the node and this line; `nvidia-smi -q` there shows its GPUs' errors",
    ),
    Known(
        Kind.MEMORY,
        "GPU memory",
        r"(CUDA|CUDA error:|Cuda failure.{0,6}) '?out of memory|Failed to CUDA (host )?[cm]alloc|"
        r"(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|CUDNN_STATUS_\w*ALLOCATION_FAILED",
        f"{_GPU_MEMORY}; if yours is small, another process holds the GPU's memory: see `nvidia-smi` on that node",
    ),
    Known(
        Kind.MEMORY,
        "GPU memory",
        # Their handles and kernels need memory beside torch's own, and they have no other word for it
        # (https://github.com/pytorch/pytorch/issues/81620).
        r"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)|unable to find an engine to exec|"
        r"Unable to find a valid cuDNN algorithm",
        f"mostly the GPU's memory is full: {_GPU_MEMORY}; if it is not, torch and its CUDA libraries do not fit",
    ),
    Known(
        Kind.SETUP,
        "threads",
        r"pthread_create(\(\))? failed|blas_thread_init: pthread_create|Thread creation failed",
        "the limit of processes (`ulimit -u`, or a container's) is reached: take fewer threads or data_workers",
    ),
    Known(
        Kind.SETUP,
        "locked memory",
        r"ibv_\w+(\(\))? failed\b.{0,20}Cannot allocate memory",
        "jobs may lock too little memory for InfiniBand: ask your site for `ulimit -l unlimited`, also in Slurm's jobs",
    ),
    Known(
        Kind.MEMORY,
        "memory",
        r"(?i)can't allocate memory|cannot allocate memory|out of memory|alloc_failed|bad_alloc|unable to mmap|"
        r"MemoryError: |"
        r"could not create a (memory|primitive)|new thread",
        "take a smaller batch or fewer data_workers, or ask for more memory (memory_mb_per_node)",
    ),
    Known(
        Kind.SETUP,
        "one GPU for each rank",
        "Duplicate GPU detected|Ranks are using the same GPU",
        "take backend gloo, or ask for a GPU per process",
    ),
    Known(
        Kind.SETUP,
        "visible GPUs",
        "invalid device ordinal",
        "fewer GPUs are visible than the program counts on: ask for --gpus-per-node, bound to no task",
    ),
    Known(
        Kind.SETUP,
        "GPU architecture",
        "no kernel image is available",
        "install a build of torch whose torch.cuda.get_arch_list() has this GPU, or ask for another type of GPU",
    ),
    Known(
        Kind.SETUP,
        "driver",
        "driver on your system is too old|driver version is insufficient",
        "install a build of torch for an older CUDA",
    ),
    Known(
        Kind.BUSY,
        "port",
        "EADDRINUSE|[Aa]ddress already in use",
        "another program has the port: start the same call again; on several nodes it follows from the job's id",
    ),
    Known(
        Kind.BUSY,
        "shared disk",
        r"Stale (NFS )?file handle|Transport endpoint is not connected|Remote I/O error|Device or resource busy: ",
        "a shared disk was away, or another node changed the file: caches of compilers belong on the node's disk "
        "(TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR)",
    ),
    Known(
        Kind.SETUP,
        "GPU in a fork",
        "Cannot re-initialize CUDA in forked subprocess",
        "a data worker uses the GPU: let the data set return tensors in main memory",
    ),
    Known(
        Kind.SETUP,
        "network interface",
        "Unable to find address for|Unable to resolve hostname|find interface|no socket interface found|"
        "address with family .* is neither AF_INET",
        "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME (`network_interface` in the site's file) to one that is there",
    ),
    Known(
        Kind.SETUP,
        "shared memory",
        r"shared memory segment|/dev/shm/nccl|(out of|insufficient) shared memory|signal: Bus error|"
        r"</torch_\w+>: No space left|unable to write to file </torch_",
        "/dev/shm is full or too small: enlarge it (a container's --shm-size), or take fewer data_workers; for NCCL, "
        "set NCCL_SHM_DISABLE=1",
    ),
    Known(
        Kind.SETUP,
        "open files",
        r"Too many open files|received 0 items of ancdata|unable to open shared memory object",
        "raise the limit (`ulimit -n`, as far as `ulimit -Hn` allows), take fewer data_workers, or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Known(
        Kind.SETUP,
        "temporary folder",
        "AF_UNIX path too long",
        "its path is too long for a socket: set TMPDIR to a short one, such as /tmp",
    ),
    Known(
        Kind.SETUP,
        "torchvision",
        r"operator torchvision::\w+ does not exist",
        "torchvision and torch do not fit: install both from one index",
    ),
    Known(
        Kind.SETUP,
        "environment",
        "No module named 'torch'",
        "the interpreter has no torch: see `environment` in the site's file",
    ),
    Known(
        Kind.SETUP,
        "environment",
        "failed to map segment from shared object",
        "the library's folder is mounted noexec, or memory is limited (`ulimit -v`): choose a folder from which "
        "programs run (TMPDIR, TORCHINDUCTOR_CACHE_DIR, or `node_disk` in the site's file), or lift the limit",
    ),
    Known(
        Kind.SETUP,
        "environment",
        r"error while loading shared libraries|cannot open shared object file|(GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found|"
        r"undefined symbol: |Failed to find C compiler",
        "a library or gcc is missing: load the modules that the environment was built with (`modules` of the site)",
    ),
    Known(
        Kind.DEVICE,
        "CUDA",
        r"CUDA (driver )?error: |cuda runtime error|CUDNN_STATUS_EXECUTION_FAILED|No CUDA GPUs are available|"
        r"illegal (memory access|instruction)|launch (failure|timed out)|misaligned address|\bMPS (client|server)",
        "processes that share a GPU by MPS share such a fault; if it is met alone, CUDA_LAUNCH_BLOCKING=1 names the "
        "operation",
    ),
    Known(
        Kind.HANG,
        "a collective that did not end",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for \w+ operation|"
        r"failed to pass monitoredBarrier|Stalled: ",
        "a rank did not come to it, came to another, or the network stands still: the log shows where each rank was",
    ),
    Known(
        Kind.LOST_PEER,
        "lost peer",
        r"(closed|reset) by (remote )?peer|gloo/transport|[Bb]roken pipe|Horovod has been shut down|PeerFailed: |"
        r"Dist(Network|Store)Error: |ncclRemoteError|remote process exited|NCCL communicator was aborted|"
        r"retrieving ncclUniqueId|[Cc]onnection was likely closed|Connection refused|No route to host",
        "",
    ),
    Known(
        Kind.LOST_PEER,
        "data worker",
        r"DataLoader worker \(pid",
        "the log may have the worker's own words; without any, it was mostly killed for memory: take fewer "
        "data_workers, or ask for more memory (memory_mb_per_node)",
    ),
    Known(
        Kind.SETUP,
        "NCCL",
        r"nccl\w*Error|ncclInvalid\w+|NCCL error",
        "NCCL_DEBUG=WARN in the job's environment has NCCL say more; its documentation's Troubleshooting explains that",
    ),
)

_NO_NETWORK = "the network gave no answer, and jobs often have none: fetch it before, then name its folder in `links`"

# What commands meet, and strategies do not: these come first for a command.
OF_COMMANDS = (
    Known(
        Kind.SETUP,
        "no GPU",
        r"no attribute '_cuda_|not compiled with CUDA enabled|[Nn]o NVIDIA driver|No CUDA GPUs are available|"
        r"no CUDA-capable device|no GPUs found|doesn't have NCCL built in|"
        r"(CUDA|GPU) is (not available|required|needed)|[Nn]o (supported )?(gpu|GPU|CUDA)",
        "it asks for a GPU, and none is here: give it its option for CPUs, or run it where GPUs are",
    ),
    Known(
        Kind.SETUP,
        "network",
        r"urlopen error|HTTPS?ConnectionPool|gaierror|no internet|ConnectTimeout|ProxyError|couldn't connect to|"
        r"LocalEntryNotFound|offline mode|Could ?n[o']t resolve host|Error downloading|ConnectionError: ",
        _NO_NETWORK,
    ),
    Known(Kind.SETUP, "data", r"[Dd]ataset (is )?not found|use download=True", _NO_NETWORK),
    Known(
        Kind.SETUP, "Pipe", r"distributed\.pipeline'", "torch has no Pipe any more: strategy pipeline takes its place"
    ),
    Known(
        Kind.SETUP,
        "module",
        r"No module named|(package|library|module) .*(is not|isn't) installed|command not found",
        "name its package in `packages` of the config; a file of yours is named in `links`",
    ),
    Known(
        Kind.SETUP,
        "file",
        r"No such file or directory|FileNotFoundError|can't open file|does not exist",
        "the command runs in a folder of its own: what it reads there is named in `links`, anything else by a whole "
        "path that the nodes can see",
    ),
    Known(Kind.SETUP, "space", r"No space left on device|[Qq]uota exceeded|PytorchStreamWriter failed", FREE_SPACE),
    Known(Kind.SETUP, "permission", r"Permission denied|Read-only file system", "let it write below its own folder"),
    Known(
        Kind.SETUP,
        "argument",
        r"error: (unrecognized arguments|the following arguments are required|argument |ambiguous option)|"
        r"[Nn]o such option|Missing (option|argument)|Key '\S+' is not in struct|Could not override",
        "the script does not take this argument: compare the command with what its `--help` lists",
    ),
    Known(
        Kind.SETUP,
        "ranks",
        r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|LOCAL_RANK) expected|"
        r"KeyError: '(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|SLURM_PROCID|SLURM_LOCALID|SLURM_NTASKS)'",
        "it expects a launcher: write `torchrun` in place of `python`, or give launcher: direct (srun on a cluster)",
    ),
    Known(
        Kind.SETUP,
        "screen",
        r"cannot connect to X server|no display name|couldn't connect to display|headless",
        "jobs have no screen: write `env MPLBACKEND=Agg` before the command",
    ),
    Known(
        Kind.SETUP,
        "keyboard",
        "EOF when reading a line|api_key not configured|not logged in|Token is required",
        "nobody answers a job at a keyboard: give it as an argument, or switch it off (`env WANDB_MODE=offline`)",
    ),
)


def known(text: str, table: Sequence[Known] = TABLE) -> Known | None:
    """The first row that fits an error's text; None for what nobody has met yet, which is the program's own."""
    return next((row for row in table if re.search(row.pattern, text)), None)


def text_of(error: BaseException) -> str:
    """An error's types and texts, with what led to it, in one line. A mistake speaks for itself: it is all of it."""
    line = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, UserError) or error.__cause__ is None:
        return line
    return f"{line}; {text_of(error.__cause__)}"


def is_a(kind: Kind, error: BaseException) -> bool:
    """Whether an error is of that kind. A mistake of the user's is of none."""
    row = None if isinstance(error, UserError) else known(text_of(error))
    return row is not None and row.kind == kind
