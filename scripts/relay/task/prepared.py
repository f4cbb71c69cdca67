"""What a task's `prepare` makes: its name and version, from the code that makes it."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from relay.base.ending import of_a_disk
from relay.base.errors import Unavailable, UserError
from relay.datasets.manifest import Manifest
from relay.datasets.prepare import prepare
from relay.spec.identity import fingerprint, plain_tree, source_digest
from relay.spec.tasks import BUILT_IN, DatasetSpec, TaskSpec
from relay.task.load import in_one_line, task_of
from relay.task.user import Task, options_of


def version_of(task: Task) -> str:
    """8 hex digits of what decides the content of a task's data.

    They are `data_version`, the code of `prepare` and of all that it calls of the user's own: methods, functions and
    classes of the file and of modules beside it; and the options and the constants of modules that these read; and
    the files that the task declares, because `prepare` may read any of them. What packages make is not seen:
    `data_version` tells that they make something else.
    """
    code = _Code(type(task))
    options = {name: value for name, value in options_of(task).items() if name in code.attributes}
    more = [code.constants] if code.constants else []
    more += [{"files": source_digest(code.folder / name for name in task.files)}] if task.files else []
    return fingerprint([task.data_version, code.trees, options, *more])[:8]


class _Code:
    """The user's code that `prepare` reaches: syntax trees, attributes of `self`, and constants of modules, by name."""

    def __init__(self, kind: type[Task]) -> None:
        self.kind, self.folder = kind, Path(inspect.getfile(kind)).resolve().parent
        self.trees: list[Any] = []
        self.attributes: set[str] = set()
        self.constants: dict[str, Any] = {}
        waiting: list[Any] = [kind.prepare]
        for each in waiting:  # it grows meanwhile
            waiting += [other for other in self._read(each) if other not in waiting]

    def _read(self, one: Any) -> Iterator[Any]:
        """Note the code of a function or class. Yields the functions and classes that it names."""
        tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
        self.trees.append(plain_tree(tree))
        nodes = sorted((node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)), key=ast.unparse)
        for node in nodes:
            if isinstance(node, ast.Name):
                yield from self._named(node.id, vars(sys.modules[one.__module__]).get(node.id))
            elif isinstance(node.value, ast.Name) and node.value.id == "self":
                self.attributes.add(node.attr)
                method = getattr(self.kind, node.attr, None)
                yield from [method] if inspect.isfunction(method) else []
            elif isinstance(node.value, ast.Name):
                module = vars(sys.modules[one.__module__]).get(node.value.id)
                if inspect.ismodule(module) and self._is_own(module):
                    yield from self._named(ast.unparse(node), getattr(module, node.attr, None))

    def _named(self, name: str, value: Any) -> Iterator[Any]:
        if inspect.isfunction(value) or inspect.isclass(value):
            if value is not self.kind and self._is_own(sys.modules.get(value.__module__)):
                yield value
        elif isinstance(value, int | float | str | bool) and self.folder != BUILT_IN.resolve():
            self.constants[name] = value

    def _is_own(self, module: Any) -> bool:
        """Whether a module is the user's: it lies in the task's folder, or below."""
        file = getattr(module, "__file__", None)
        return file is not None and self.folder != BUILT_IN.resolve() and self.folder in Path(file).resolve().parents


def prepare_data(
    task: TaskSpec, spec: DatasetSpec, output: Path, *, root: Path | None = None, mirror: str | None = None
) -> Manifest:
    """Prepare a task's data into a folder, unless they are there. Raises UserError; nothing half-made is used."""
    own = task_of(task)
    own.dataset_root, own.dataset_mirror = root, mirror
    return prepare(spec, partial(_run_prepare, own, task), output)


def _run_prepare(own: Task, task: TaskSpec, folder: Path) -> Any:
    try:
        own.prepare(folder)
    except Exception as error:
        if isinstance(error, UserError) or (isinstance(error, OSError) and of_a_disk(error)):
            raise
        file = Path(inspect.getfile(type(own)))
        kind = Unavailable if isinstance(error, ConnectionError | TimeoutError) else UserError
        raise kind(
            f"task {task.name}: prepare() failed, nothing is used of what it made: {in_one_line(error, file)}"
        ) from error
