"""Builds SGLang's real argument parser, and prints what it declares and what it makes of lines.

    python tools/sglang_argument_runner.py FOLDER < lines.json > results.json

FOLDER holds one release's unpacked wheel (``sglang/``); lines.json is a list of argument lists.
What the parser does not need, CUDA and kernels above all, is a stand-in. The environment is that
of ``sglang_wheels``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import re
import sys
import types
from typing import Any, NoReturn

from sglang_stand_ins import Finder

# No file of these is read: of what the parser declares, nothing comes from there.
OUTSIDE = frozenset(
    "IPython PIL av cachetools cuda decord einops flash_attn flashinfer gguf hf_transfer "
    "interegular llguidance mooncake modelscope multipart openai openai_harmony outlines "
    "partial_json_parser prometheus_client pynvml python_multipart scipy sgl_kernel soundfile "
    "tiktoken timm torch_memory_saver torchada torchao torchcodec torchvision triton uvicorn "
    "uvloop xgrammar zmq".split()
)
INSIDE = tuple(
    f"sglang.{name}"
    for name in "kernels.ops.attention lang srt.configs srt.entrypoints srt.layers".split()
)

# A converter of SGLang's and the kind that stands for it in the table.
KINDS = {
    "NoneType": "str",
    "loads": "json",
    "json_list_type": "json_list",
    "human_readable_int": "human_int",
    "parse_cuda_graph_config_arg": "json_object",
    "parse_cuda_graph_backend_arg": "str",
}


class Refused(Exception):  # noqa: N818 (a result, not a fault)
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Refused(message or "prints its help and ends")


def server_arguments(folder: str) -> Any:
    """Return the class ``ServerArgs`` of the release in ``folder``."""
    sys.meta_path.insert(0, Finder(OUTSIDE, INSIDE))
    package: Any = types.ModuleType("sglang")
    package.__path__ = [f"{folder}/sglang"]
    sys.modules["sglang"] = package
    return importlib.import_module("sglang.srt.server_args").ServerArgs


def build(server_args: Any) -> Parser:
    parser = Parser(prog="sglang serve")
    server_args.add_cli_args(parser)
    for action in parser._actions:
        if isinstance(action.choices, set):  # in another order each time
            action.choices = sorted(action.choices)
    return parser


def fields(server_args: Any) -> dict[str, str]:
    """Return the names by which the server knows what the parser stores under another name."""
    source = inspect.getsource(server_args.from_cli_args)
    return {old: new for new, old in re.findall(r"^\s*args\.(\w+) = args\.(\w+)$", source, re.M)}


def declared(parser: Parser, names: dict[str, str]) -> list[dict[str, Any]]:
    """Return one row for each argument, in the order of their declaration."""
    rows = []
    for action in parser._actions:
        row = {
            "flags": list(action.option_strings),
            "name": names.get(action.dest, action.dest),
            **_kind(action, parser),
        }
        if action.nargs not in (None, 0):
            row["nargs"] = action.nargs
        if action.choices:
            row["choices"] = list(action.choices)
        if action.nargs == "?" and action.const is not None:
            row["const"] = action.const
        if action.default is argparse.SUPPRESS:
            row["silent"] = True  # another argument of the same name gives the default
        elif action.default != (False if row.get("value") is True else None):
            row["default"] = action.default
        rows.append(row)
    return rows


def _kind(action: Any, parser: Parser) -> dict[str, Any]:
    """Return what an argument takes and stores; of one without a value, seen by using it."""
    if isinstance(action, argparse._HelpAction):
        return {"kind": "help"}
    if isinstance(action, argparse.BooleanOptionalAction):
        return {"kind": "switch"}
    alias = getattr(action, "const_value", None)
    if type(action).__name__ == "LoRAPathAction":
        return {"kind": "lora"}
    if action.nargs != 0 and alias is None:
        kind = getattr(action.type, "__name__", type(action.type).__name__)
        return {"kind": KINDS.get(kind, kind)}
    namespace = argparse.Namespace()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            action(parser, namespace, [], action.option_strings[0])
    except (Refused, ValueError) as refusal:
        return {"kind": "refused", "message": str(refusal)}
    if not hasattr(namespace, action.dest):
        return {"kind": "ignored"}
    kind = "constant" if action.nargs == 0 else "constant_of"
    return {"kind": kind, "value": getattr(namespace, action.dest)}


def outcome(parser: Parser, names: dict[str, str], line: list[str]) -> dict[str, Any]:
    """Return what the parser makes of one line: an error, or what is given and left over."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            given, left = parser.parse_known_args(line)
    except Refused as refusal:
        return {"error": str(refusal)}
    except (ValueError, AssertionError) as error:  # an action that refuses by raising
        return {"error": str(error)}
    return {
        "given": {names.get(name, name): value for name, value in vars(given).items()},
        "left": left,
    }


def main() -> None:
    server_args = server_arguments(sys.argv[1])
    names = fields(server_args)
    parser = build(server_args)
    rows = declared(parser, names)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # only what a line gives is of interest
    parser._defaults.clear()
    results = [outcome(parser, names, line) for line in json.load(sys.stdin)]
    json.dump({"rows": rows, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
