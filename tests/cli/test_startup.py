"""What a start imports, counted: the time that it takes follows from it, and is the machine's own.

``benchmarks/startup.py`` measures the time.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.startup import QUICK_START

# How much of the house a sizing may load: lines of code cost the time, modules little.
MOST_OWN_LINES = 4350
# Beside those that click brings; each has its user.
STANDARD = {
    *("_json", "json", "json.decoder", "json.encoder", "json.scanner"),  # the answer
    *("_locale", "locale"),  # click's own, where it looks for a translation
    *("_contextvars", "contextvars"),  # how long a root may be read
    "shlex",  # commands to paste
}
LIST = """
import ast, contextlib, io, json, sys
import click
before = set(sys.modules)
from preflight.cli.sizing import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(sys.argv[1:])
names = sorted(name for name in set(sys.modules) - before if "encodings" not in name)
mine = ("checks", "preflight", "mooncake_preflight")
own = [name for name in names if name.split(".")[0] in mine]
lines = 0
for name in own:
    with open(sys.modules[name].__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            body[0].lineno, body[0].end_lineno, body[0].value = 0, 0, ast.Constant(None)
    lines += len({node.lineno for node in ast.walk(tree) if getattr(node, "lineno", 0)})
print(json.dumps([code, names, own, lines]))
"""


@pytest.mark.slow
def test_a_sizing_imports_what_it_needs_and_no_more() -> None:
    started = subprocess.run(
        [sys.executable, "-c", LIST, *QUICK_START.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    code, names, own, lines = json.loads(started.stdout)
    assert code == 0, "the quick start fits"
    assert 0 < lines <= MOST_OWN_LINES, own
    assert set(names) - set(own) <= STANDARD
