"""Stops or kills a process of the product at a named point, told by an environment variable. The product knows nothing
of it: `hooked.interpreter` makes a Python that imports this at its start.

The variable holds JSON: `at`, the name of a function ("relay.module:Class.function") or of a module that is about to be
imported ("torch.nn"); `rank`, of the process that it concerns (null: whichever comes first); `call`, the number of the
call, from 1; `signal`, which the process sends to itself; `once`, a file that is made then, and keeps all others off.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
from types import ModuleType
from typing import Any

VARIABLE = "RELAY_TEST_HOOK"


def act(hook: dict[str, Any]) -> None:
    """Send this process the signal, if it is the one that is meant and the first to come here."""
    if hook["rank"] is not None and os.environ.get("RANK", "0") != str(hook["rank"]):
        return
    try:
        os.close(os.open(hook["once"], os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    with open(f"{hook['once']}.pid", "w") as stream:  # noqa: PTH123  # nothing but what Python has at its start
        stream.write(str(os.getpid()))
    os.kill(os.getpid(), getattr(signal, hook["signal"]))


class Finder(importlib.abc.MetaPathFinder):
    """Sees every import: acts at a module's, and wraps a function when its module has been imported."""

    def __init__(self, hook: dict[str, Any]) -> None:
        self.hook = hook
        self.module, _, self.function = hook["at"].partition(":")

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != self.module or (not self.function and "RANK" not in os.environ and self.hook["rank"] is not None):
            return None
        if not self.function:
            act(self.hook)
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader = Wrapping(spec.loader, self)  # type: ignore[assignment]
        return spec

    def wrap(self, module: ModuleType) -> None:
        owner: Any = module
        *outer, last = self.function.split(".")
        for name in outer:
            owner = getattr(owner, name)
        whole, calls = owner.__dict__[last], 0
        plain = whole.__func__ if isinstance(whole, classmethod) else whole

        @functools.wraps(plain)
        def wrapped(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == self.hook["call"]:
                act(self.hook)
            return plain(*given, **named)

        setattr(owner, last, classmethod(wrapped) if isinstance(whole, classmethod) else wrapped)


class Wrapping(importlib.abc.Loader):
    def __init__(self, loader: Any, finder: Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = self.loader  # type: ignore[union-attr]
        self.loader.exec_module(module)
        self.finder.wrap(module)


if told := os.environ.get(VARIABLE):
    sys.meta_path.insert(0, Finder(json.loads(told)))
