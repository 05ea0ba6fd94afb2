"""Stand-ins for what SGLang imports and what is not installed: kernels, CUDA, models."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
from typing import Any


class _Meta(type):
    """Any attribute and any subscript of a stand-in is a stand-in."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    def __ror__(cls, other: object) -> Any:
        return cls


class StandIn(metaclass=_Meta):
    """Also a decorator, with and without arguments."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and not options and callable(arguments[0]):
            return arguments[0]
        return object.__new__(cls)

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a stand-in for the packages ``outside`` SGLang and the modules ``inside`` it."""

    def __init__(self, outside: frozenset[str], inside: tuple[str, ...]) -> None:
        self.outside = outside
        self.inside = inside

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        inside = any(name == part or name.startswith(f"{part}.") for part in self.inside)
        if name.partition(".")[0] not in self.outside and not inside:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = _Module(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = "0.0.0"
        return module

    def exec_module(self, module: Any) -> None: ...
