"""Assignments in front of a command, held against what bash gives the command."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.launches.shell_script import read_script

NAMES = ("A", "B", "C")

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")


def _bash(script: str) -> list[dict[str, str]]:
    """What each ``printenv`` of ``script`` prints, of the names above."""
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
        check=True,
    )
    found = []
    for block in re.split(r"(?m)^--\n", done.stdout)[:-1]:  # A=0-- is a value
        lines = (line.partition("=") for line in block.splitlines())
        found.append({name: value for name, _, value in lines if name in NAMES})
    return found


def _read(script: str) -> list[dict[str, str]]:
    commands = read_script(script, "s", {}).commands
    return [
        {name: word.text for name, word in one.environment.items() if name in NAMES}
        for one in commands
        if one.words[0].text.endswith("printenv")
    ]


P = "/usr/bin/printenv; echo --"


@pytest.mark.parametrize(
    "script",
    [
        # DEVICES=a,b on one line, and MOONCAKE_DEVICE=$DEVICES PROTOCOL=rdma server on the next.
        f"A=x; B=1 C=$A {P}", f"A=x; B=$A C=$B {P}", f"A=x; A=y B=$A {P}; C=$A {P}",
        f"export A=x; unset A; B=1 C=${{A:-none}} {P}",
        f"f() {{ {P}; }}; A=1 f; {P}", f"f() {{ A=2; {P}; }}; A=1 f; {P}",
        f"f() ( export A=2; {P} ); f; {P}", f"export A; A=1; {P}", f"declare -x A; A=1; {P}",
        f"export A=1; unset A; A=2; {P}", f"A=1; unset A; export A; A=2; {P}",
        f"declare -x A=1; declare +x A; {P}", f"export A=1; export -n A=2; {P}",
        f"(set -a; A=1; {P}); A=2; {P}", f"B=$(set -a; echo x); A=2; {P}",
        f"echo | {{ set -a; }}; A=2; {P}", f"set -e -a; A=1; {P}",
        f"set -eu -o allexport; A=1; set +a; B=2; {P}", f"set -euo pipefail -a; A=1; {P}",
        f"(declare -i A); A=1+1; export A; {P}", f"A=1; unset -f A; export A; {P}",
        f"A=1; A+=(2); export B=${{#A[@]}}; {P}", f"export A=1; (eval 'A=4; {P}'); {P}",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_is_exported_is_what_bash_exports(script: str) -> None:
    assert _read(script) == _bash(script)


_VALUES = st.sampled_from(["x", "", "$A", "$B", "${C}", '"$A-$B"', "${A:-d}", "'$A'", "a$C"])
_PAIRS = st.lists(st.tuples(st.sampled_from(NAMES), _VALUES), min_size=1, max_size=3)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["", "export ", "prefix"]), _PAIRS), max_size=5))
def test_any_assignments(steps: list[tuple[str, list[tuple[str, str]]]]) -> None:
    lines = [f"{name}=0" for name in NAMES]  # all are set: what is not is another matter
    for kind, pairs in steps:
        words = " ".join(f"{name}={value}" for name, value in pairs)
        lines.append(
            f"{words} /usr/bin/printenv; echo --" if kind == "prefix" else f"{kind}{words}"
        )
    lines.append("/usr/bin/printenv; echo --")
    script = "".join(f"{line}\n" for line in lines)
    assert _read(script) == _bash(script)
