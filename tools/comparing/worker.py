"""Answer requests with one version of the program: run as a script, one JSON object a line.

It reads ``{"program": NAME, "arguments": [...], "limit_seconds": N}`` and writes ``{"exit": CODE,
"out": TEXT, "err": TEXT, "cpu_seconds": N}``. Each request runs in a fork, so that nothing of one
can leak into the next; the modules that it imported are imported here too, so that the next one
need not.

It knows of the version only what the version declares: the console scripts of its
``pyproject.toml`` (with a source tree as argument), else of the distribution that is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
from typing import Any

DISTRIBUTION = "mooncake-preflight"


def programs(tree: str | None) -> dict[str, str]:
    """Return the console scripts by name, each as ``module:function``."""
    if tree is None:
        from importlib.metadata import distribution

        return {
            entry.name: entry.value
            for entry in distribution(DISTRIBUTION).entry_points
            if entry.group == "console_scripts"
        }
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with open(os.path.join(tree, "pyproject.toml"), "rb") as file:
        found: dict[str, str] = tomllib.load(file)["project"]["scripts"]
    return found


def answer(target: str, request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Run one request in a fork, and return what it wrote and how it ended."""
    names = {stream: os.path.join(folder, stream) for stream in ("out", "err", "modules")}
    child = os.fork()
    if child == 0:
        code = 70
        try:
            signal.alarm(request["limit_seconds"])  # unhandled, so that it ends the process
            code = _run(target, request, names)
        finally:
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    texts = {}
    for stream, name in names.items():
        with open(name, encoding="utf-8", errors="replace") as file:
            texts[stream] = file.read()
    for module in texts.pop("modules").split():
        with contextlib.suppress(Exception):  # it was imported under another condition
            importlib.import_module(module)
    code = os.waitstatus_to_exitcode(status)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return {"exit": code if code >= 0 else 128 - code, "cpu_seconds": cpu_seconds, **texts}


def _run(target: str, request: dict[str, Any], names: dict[str, str]) -> int:
    """Be the program, in the fork: return its exit code."""
    for stream, number in (("out", 1), ("err", 2)):
        handle = os.open(names[stream], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    open(names["modules"], "w").close()
    before = set(sys.modules)
    sys.argv = [request["program"], *request["arguments"]]
    code: Any = 0
    try:
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)()
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    with open(names["modules"], "w") as file:
        file.write("\n".join(name for name in sys.modules if name not in before))
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


def main() -> None:
    """Answer each line of standard input until it ends."""
    tree = sys.argv[1] if len(sys.argv) > 1 else None
    # The folder of this script came first; its modules must not stand before the version's.
    del sys.path[0]
    known = programs(tree)
    # What a version prints while it is imported must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            request = json.loads(line)
            answers.write(json.dumps(answer(known[request["program"]], request, folder)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
