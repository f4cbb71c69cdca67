"""Where in a user's file something stands, and mistakes told with that place."""

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from relay.base import ending
from relay.base.errors import UserError
from relay.run_folder import known_faults
from relay.task.load import in_one_line, shown
from relay.task.user import Task


def place(kind: type[Task], name: str = "") -> str:
    """`file:line` of what a task's class, or one that it derives from, defines by this name; else of the class."""
    owner = next((each for each in kind.__mro__ if name in vars(each) and each is not Task), kind)
    file = inspect.getfile(owner)
    return f"{shown(file)}:{_line(Path(file), owner.__name__, name)}"


def _line(file: Path, owner: str, name: str) -> int:
    for node in ast.walk(ast.parse(file.read_text("utf-8-sig"))):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            return next((each.lineno for each in node.body if name in _names(each)), node.lineno)
    return 1


def _names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a class defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def mistake(kind: type[Task], name: str, problem: str) -> UserError:
    """A user's mistake in what the class defines by this name."""
    return UserError(f"{place(kind, name)}: {problem}")


@contextmanager
def calling(kind: type[Task], name: str, of: str = "") -> Iterator[None]:
    """Tell what a method of the user's raises in one line, as `fail` does. Raises UserError."""
    try:
        yield
    except Exception as error:
        fail(kind, name, error, of)


def fail(kind: type[Task], name: str, error: Exception, of: str = "") -> NoReturn:
    """Raise what a method of the user's has raised in one line with its place; `of`: while it worked on what.

    Raises UserError.
    """
    of = f"{of}: " if of else ""
    if isinstance(error, UserError):
        if re.match(r"\S.*\.py:\d+: ", str(error)):  # it has a place
            raise error
        raise mistake(kind, name, f"{of}{error}") from error
    line, nowhere = in_one_line(error, Path(inspect.getfile(kind)), of), f"{shown(inspect.getfile(kind))}: "
    raise UserError(
        f"{place(kind, name)}: {line.removeprefix(nowhere)}" if line.startswith(nowhere) else line
    ) from error


def of_machine(error: Exception) -> bool:
    """Whether the machine is to blame, such as a full memory or a failing disk: such an error has its own remedy."""
    if isinstance(error, UserError):
        return False
    fault = ending.of_a_disk(error) or known_faults.look_up(known_faults.text_of(error))
    return isinstance(error, MemoryError) or fault is not None


NO_GPU = r"cuda|nvidia|triton|\bgpu|cpu tensor\?|active drivers"  # the last two are Triton's
# What torch, Triton and libraries of kernels raise for want of a GPU; others' words may name one, as a file's path may.
OF_DEVICES = (RuntimeError, AssertionError, NotImplementedError, ValueError)
OF_CUDA = r"_cuda_\w+|CUDA_HOME|CUDA_VISIBLE_DEVICES|'nvidia-smi'"  # which errors of any kind name for want of one


def needs_gpu(error: BaseException) -> bool:
    """Whether a user's code failed for want of a GPU, or of tensors on it; `error` is the one that was told."""
    cause = error.__cause__ if isinstance(error, UserError) and error.__cause__ else error
    said = str(cause) or str(error).rpartition(": ")[2]  # of an assertion without words its line
    of_devices = isinstance(cause, OF_DEVICES) and re.search(NO_GPU, said, re.IGNORECASE)
    return bool(of_devices or re.search(OF_CUDA, said))


def of_two_devices(error: Exception) -> bool:
    """Whether this is torch's error for tensors of two devices in one operation."""
    return any(words in str(error) for words in ("same device", "not on the expected device"))
