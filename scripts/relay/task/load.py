"""From a task's file to an object of its class."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

from relay.base.errors import UserError
from relay.datasets import vision
from relay.run_folder.snapshot import OWN_TASK
from relay.spec.tasks import TaskSpec
from relay.task.user import Task

PACKAGE = Path(__file__).parents[1]
# In a run's snapshot of the code: the user's file, with the modules beside it that it imports.
FROZEN = PACKAGE / OWN_TASK


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
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise UserError(f"task: '{file}' is no Python file")
    module = importlib.util.module_from_spec(found)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    vision.importable()
    sys.modules[name] = module  # pickling, and dataclasses, look it up
    try:
        found.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise UserError(told(error, file)) from error
    return module


def shown(file: str | Path) -> str:
    """A user's file as a line names it: that of a run's frozen code by its name alone."""
    return str(Path(file).relative_to(FROZEN) if Path(file).is_relative_to(FROZEN) else file)


def told(error: BaseException, file: Path, of: str = "") -> str:
    """An error of a user's code in one line, with the line of the user's files where it was raised.

    `of` comes after the place: on what the code worked.
    """
    if isinstance(error, SyntaxError):
        return f"{shown(error.filename or file)}:{error.lineno}: no valid Python: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    written = [frame for frame in frames if not frame.filename.startswith("<")]  # not Python's own import
    own = [frame for frame in written if Path(frame.filename).resolve().parent == file.resolve().parent]
    place = f"{shown(own[-1].filename)}:{own[-1].lineno}" if own else shown(file)
    what = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        allowed = "packages of the stack, those that `packages` of the config adds, and files beside this one"
        return f"{place}: {of}{what}; allowed: {allowed}"
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
        names = " and ".join(each.__name__ for each in last) or "none"
        raise UserError(f"{module.__file__}: one class must derive from relay.Task; found: {names}")
    return last[0]
