"""From a task's file to an object of its class."""

import importlib.util
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from relay.base.errors import UserError
from relay.datasets import vision
from relay.run_folder.snapshot import OWN_TASK, own_files
from relay.spec.tasks import TaskSpec
from relay.task.user import Task

PACKAGE = Path(__file__).parents[1]
# In a run's snapshot of the code: the user's file, with what it imports and declares beside it.
FROZEN = PACKAGE / OWN_TASK
# Folders with such copies, and how a line names the folder that was copied.
COPIES = {FROZEN: Path()}


def task_of(spec: TaskSpec) -> Task:
    """The task with the options, the learning rate and the batch of its specification. Raises UserError."""
    task = task_class(spec)()
    for name, value in spec.options.items():
        setattr(task, name, value)
    task.learning_rate, task.global_batch_size = spec.learning_rate, spec.global_batch_size
    return task


def task_class(spec: TaskSpec) -> type[Task]:
    """The class of a task. Raises UserError, with file and line, where its file cannot be run."""
    if not spec.file:
        return class_in(import_module(f"relay.tasks.{spec.name.replace('-', '_')}"))
    given = Path(spec.file)
    frozen = FROZEN / given.name
    return class_in(module_of(frozen if frozen.is_file() else given))


def module_of(file: Path) -> ModuleType:
    """A user's file as a module; it may import modules that lie beside it. Raises UserError."""
    name = f"relay_task_{file.stem}"
    if name in sys.modules and Path(sys.modules[name].__file__ or "") == file:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"task: '{file}' is no Python file")
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    vision.importable()
    sys.modules[name] = module  # pickling, and dataclasses, look it up
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise UserError(in_one_line(error, file)) from error
    return module


def shown(file: str | Path) -> str:
    """A user's file as a line names it: a copy as the file that was copied, that of a run's frozen code by its name."""
    of = next((each for each in COPIES if Path(file).is_relative_to(each)), None)
    return str(COPIES[of] / Path(file).relative_to(of) if of else file)


@contextmanager
def as_in_jobs(file: str) -> Iterator[str]:
    """A copy of a user's file, with what jobs have of its folder: what they lack is missing there, too.

    In a job it is the file itself, because the snapshot has that copy. Raises UserError where the file cannot be read.
    """
    if not file or (FROZEN / Path(file).name).is_file():
        yield file
        return
    with TemporaryDirectory() as temporary:
        copy = Path(temporary)
        for name, path in own_files(Path(file)).items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy / name)
        COPIES[copy] = Path(file).parent
        try:
            yield str(copy / Path(file).name)
        finally:
            _forget(copy)


def _forget(copy: Path) -> None:
    """Let no later import find a copy that is gone."""
    del COPIES[copy]
    for name, module in [*sys.modules.items()]:
        if Path(getattr(module, "__file__", None) or "").is_relative_to(copy):
            del sys.modules[name]
    sys.path[:] = [each for each in sys.path if each != str(copy)]


def undeclared(error: BaseException) -> str:
    """The file beside a user's that is missing in a copy alone, by its name there; '' for any other error."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str | Path):
        return ""
    path = Path(error.filename)
    return next((str(path.relative_to(each)) for each in COPIES if path.is_relative_to(each)), "")


def in_one_line(error: BaseException, file: Path, of: str = "") -> str:
    """An error of a user's code in one line, with the line of the user's files where it was raised.

    `of` comes after the place: on what the code worked.
    """
    if isinstance(error, SyntaxError):
        return f"{shown(error.filename or file)}:{error.lineno}: no valid Python: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    written = [frame for frame in frames if not frame.filename.startswith("<")]  # not Python's own import
    own = [frame for frame in written if Path(frame.filename).resolve().parent == file.resolve().parent]
    place = f"{shown(own[-1].filename)}:{own[-1].lineno}" if own else shown(file)
    what = " ".join(str(error).split()) or (own[-1].line if own else "") or type(error).__name__
    if isinstance(error, ImportError) and "relative import" in what:
        return f"{place}: {of}{what}; allowed: the name of a file beside this one, without a dot before it"
    if isinstance(error, ModuleNotFoundError):
        allowed = "packages of the stack, those that `packages` of the config adds, and files beside this one"
        return f"{place}: {of}{what}; allowed: {allowed}"
    if name := undeclared(error):
        return (
            f"{place}: {of}{name} is missing in jobs, which have a copy of this file, of what it imports, and of the "
            f'files that its class declares; declare it, files = ("{name}",), if it is there'
        )
    return f"{place}: {of}{type(error).__name__}: {what}"


def class_in(module: ModuleType) -> type[Task]:
    """The one class of a module that derives from `relay.Task`. Raises UserError for none, and for two."""
    own = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Task) and each.__module__ == module.__name__
    ]
    # A class from which another one of the file derives is a helper.
    last = [each for each in dict.fromkeys(own) if not any(each in other.__mro__[1:] for other in own)]
    if len(last) != 1:
        names = " and ".join(each.__name__ for each in last) or "none; a script is measured as a `command`"
        raise UserError(f"{shown(module.__file__ or '')}: one class must derive from relay.Task; found: {names}")
    return last[0]
