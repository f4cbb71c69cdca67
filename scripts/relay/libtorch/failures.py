"""Why the C++ program failed: what libtorch or `ldd` says in many lines, as one, with the likely cause."""

from __future__ import annotations

import re

# What libtorch's c10::Error, the TorchScript interpreter and the dynamic linker say, and what is behind it.
CAUSES = (
    (
        r"undefined symbol|version `[^']+' not found|error while loading shared libraries",
        "it finds other libraries than it was built with: load the same modules for the build and the job, and look at "
        "LD_LIBRARY_PATH",
    ),
    (r"open file failed|No such file or directory", "a file is missing, or is on a disk that this node does not see"),
    (r"failed reading zip archive|failed finding central directory", "the model's file is damaged, or cut short"),
    (
        r"maximum supported version|Unknown builtin op|Unknown type name",
        "the model comes from a newer torch than the program: export and build with the same one",
    ),
    (
        r"not linked with support for|compiled without CUDA|from the 'CUDA' backend",
        "the program was built with a torch for CPUs, or without its library for GPUs: give the site's environment a "
        "CUDA build of torch",
    ),
    (
        r"no kernel image is available",
        "this build of torch has no code for the GPU: take another build, or ask for another GPU",
    ),
    (r"on the same device", "model and inputs are on different devices"),
    (r"expected input\[|shapes cannot be multiplied", "the inputs have another shape than the model takes"),
)
# Which module brings a shared library, by the beginning of its name; the first that fits.
MODULES = {
    r"libcudnn": "cudnn",
    r"libcusparseLt": "cusparselt",
    r"libnccl": "nccl",
    r"libcu(dart|blas|fft|rand|solver|sparse|pti|file)|libnv": "cuda",
    r"libabsl": "abseil",
    r"libprotobuf": "protobuf",
    r"libopencv": "opencv",
    r"libstdc\+\+|libgcc|libgomp|libgfortran": "gcc",
    r"libmkl|libiomp": "imkl",
    r"libmpi": "openmpi",
}
# A backtrace, and where in torch's or the model's source an error was raised: of no use to whoever runs the program.
_PLACE = re.compile(r"\s*(frame #\d+:|Exception raised from |terminate called after throwing|Traceback of TorchScript)")


def explained(said: str) -> str:
    """What the program said on standard error as one line: its message, and the likely cause where it is known."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not _PLACE.match(line)]
    # TorchScript gives its reason last, after the model's source; a c10::Error first, before the backtrace.
    reason = next((line for line in reversed(lines) if re.match(r"[A-Z]\w*Error: ", line)), None)
    message = (reason or " ".join(lines)).removeprefix("relay_libtorch: ").removeprefix("what():").strip()[:500]
    causes = (cause for pattern, cause in CAUSES if re.search(pattern, message))
    cause = next(causes, None)
    return f"{message} ({cause})" if cause else message


def absent(ldd: str, loaded: str) -> str:
    """The shared libraries that `ldd` has not found, as one line, each with its module; '' where it found all.

    `loaded`: the modules of the job, as their system lists them in LOADEDMODULES.
    """
    told = []
    for library in dict.fromkeys(re.findall(r"(?m)^\s*(\S+) => not found", ldd)):
        name = next((module for begin, module in MODULES.items() if re.match(begin, library)), None)
        there = name and next((each for each in loaded.split(":") if each.partition("/")[0] == name), None)
        brings = f"{there} is loaded and lacks it, name another version" if there else f"the module {name} brings it"
        told.append(f"{library} ({brings if name else 'look for its module with `module spider`'})")
    if not told:
        return ""
    return f"not found: {', '.join(told)}; modules of this job: stack_modules.libtorch in the site's file"
