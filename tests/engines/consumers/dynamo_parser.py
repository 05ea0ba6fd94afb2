"""What Dynamo's own parser leaves for SGLang of each list of words on standard input.

Run in an interpreter that has ai-dynamo on its path, and neither its runtime nor SGLang.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import types
from typing import Any

ABSENT = ("dynamo", "sglang", "msgspec", "pydantic")


class Class(type):
    def __getattr__(cls, name: str) -> Any:
        return stand_in(name)


def stand_in(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    methods = {
        "__init__": lambda self, *given, **named: None,
        "__contains__": lambda self, item: True,
        "__init_subclass__": classmethod(lambda cls, **named: None),
    }
    return Class(name, (Exception,), methods)


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for what is not installed: its compiled runtime, SGLang."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        ours = name.partition(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = stand_in  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    sys.meta_path.append(Absent())
    runtime = importlib.import_module("dynamo.common.configuration.groups.runtime_args")
    sglang = importlib.import_module("dynamo.sglang.backend_args")
    parser = argparse.ArgumentParser()
    for group in (runtime.DynamoRuntimeArgGroup(), sglang.DynamoSGLangArgGroup()):
        group.add_arguments(parser)
    print(json.dumps([parser.parse_known_args(words)[1] for words in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
