"""What a start imports, counted: the time that it takes follows from it, and is the machine's own.

``benchmarks/startup.py`` measures the time.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.startup import QUICK_START

# How much of the house a sizing may load: lines cost the time, modules little.
MOST_OWN_LINES = 7400
# Beside those that click brings; each has its user.
STANDARD = {
    *("_json", "json", "json.decoder", "json.encoder", "json.scanner"),  # the answer
    *("_locale", "locale"),  # click's own, where it looks for a translation
    *("_contextvars", "contextvars"),  # how long a root may be read
    "shlex",  # commands to paste
}
LIST = """
import contextlib, io, json, sys
import click
before = set(sys.modules)
from preflight.cli.sizing import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(sys.argv[1:])
names = sorted(name for name in set(sys.modules) - before if "encodings" not in name)
import typing
text = [
    f"{name}.{key}"
    for name in names
    for key, value in vars(sys.modules[name]).items()
    if hasattr(value, "_fields") and value.__module__ == name
    for kind in value.__annotations__.values()
    if isinstance(kind, typing.ForwardRef)
]
mine = ("checks", "preflight", "mooncake_preflight")
own = [name for name in names if name.split(".")[0] in mine]
lines = 0
for name in own:
    with open(sys.modules[name].__file__, encoding="utf-8") as file:
        lines += sum(1 for _ in file)
print(json.dumps([code, names, own, lines, text]))
"""


@pytest.mark.slow
def test_a_sizing_imports_what_it_needs_and_no_more() -> None:
    started = subprocess.run(
        [sys.executable, "-c", LIST, *QUICK_START.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    code, names, own, lines, text = json.loads(started.stdout)
    assert code == 0, "the quick start fits"
    assert 0 < lines <= MOST_OWN_LINES, own
    assert set(names) - set(own) <= STANDARD
    # An annotation that is text is compiled when typing.NamedTuple makes its class.
    assert text == []
