"""Units by number, and what systemd itself gives to what they start.

``python -m tests.launches.test_systemd_judged`` lets a systemd of this machine start them, in a
mount namespace of its own (as root), with a stand-in that writes down its words and environment,
and writes that into ``tests/data/judged/systemd.json``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preflight.launches.launch_files import read_source
from tests.builders.launched import argv
from tests.paths import ROOT

COUNT = 240
JUDGED = ROOT / "tests" / "data" / "judged" / "systemd.json"
PROGRAM = "/usr/local/bin/mooncake_client"  # what the stand-in is put in place of
VARIABLES = ("A", "B", "C", "D")
_VALUES = ("1", '"two words"', "'q \"r'", "x\\x20y", "a\\tb", "p=q", "--flag", "'$$A'", "%%", "é")
_FILE_VALUES = ("5", '"f g"', "'h \\ i'", "j\\k", '"l \\"m\\" \\n"', "n # o", " p ", "'q'r", "$A")
_WORDS = (
    "plain", '"two words"', "'single \"q\"'", "$A", "${A}", "$B", "x${B}y", "$$A", "%%", "\\x41b",
    "it's' 'in", '"$C"', '"${C} ${D}"', "x$A", "$A$B", "--o=${A}", "--o=$A", "a\\;b", "'$D'",
    '""', "\\t.", "\\\\", '"\\"e\\""', "\\$A", "a\\qb", "--port", "${A}${B}", "'a'\"b\"c", "é",
)  # fmt: skip


def unit(number: int) -> tuple[str, str | None]:
    """Return the text of a unit, and of the file of variables beside it where it names one."""
    draw = random.Random(number)
    lines = ["[Unit]", "# a remark", "[Service]", "Type=oneshot"]
    for _ in range(draw.randint(0, 2)):
        pairs = [f"{name}={draw.choice(_VALUES)}" for name in draw.sample(VARIABLES, 2)]
        quoted = [p if p[2] not in "\"'" else f"{p[2]}{p[:2]}{p[3:]}" for p in pairs]
        lines.append(f"Environment={' '.join(quoted)}")
    if draw.random() < 0.15:
        lines.append("Environment=")
    file = None
    if draw.random() < 0.4:
        lines.append("EnvironmentFile=-own.env")
        rows = [f"{name}={draw.choice(_FILE_VALUES)}" for name in draw.sample(VARIABLES, 3)]
        file = "\n".join(["# c", *rows, "; d"]) + "\n"
    words = [draw.choice(_WORDS) for _ in range(draw.randint(1, 5))]
    break_ = " \\\n  # remark\n  " if draw.random() < 0.1 else " \\\n   "
    line = (" " if draw.random() < 0.8 else break_).join(words)
    prefix = draw.choice(("", "", "", "-", ":", "@", "-@"))
    given = f"{prefix}{PROGRAM} {'called ' if '@' in prefix else ''}{line}"
    if draw.random() < 0.15:
        given += f" ; {PROGRAM} second ${{A}}"
    return "\n".join([*lines, f"ExecStart={given}", ""]), file


_STAND_IN = """#!/bin/sh
out={folder}/out/$UNIT.$$
{{ for w in "$@"; do printf '%s\\0' "$w"; done; printf '\\001'; for n in A B C D; do
eval "[ -n \\"\\${{$n+x}}\\" ]" && {{ eval "v=\\$$n"; printf '%s=%s\\0' $n "$v"; }}; done; }} > $out
echo $UNIT $$ >> {folder}/order
"""


def judge() -> dict[str, list[list[list[str]]]]:
    """Return, by number, the words and the variables of each process that the unit starts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        units = folder / "config" / "systemd" / "user"
        units.mkdir(parents=True)
        (folder / "out").mkdir()
        (folder / "run").mkdir(mode=0o700)
        stand_in = folder / "stand-in"
        stand_in.write_text(_STAND_IN.format(folder=folder))
        stand_in.chmod(0o755)
        wanted = []
        for number in range(COUNT):
            text, file = unit(number)
            if file is not None:
                (units / f"{number}.env").write_text(file)
            text = text.replace(PROGRAM, str(stand_in))
            text = text.replace("=-own.env", f"=-{units}/{number}.env")
            (units / f"u{number}.service").write_text(text + f"Environment=UNIT={number}\n")
            wanted.append(f"u{number}.service")
        (units / "all.target").write_text(f"[Unit]\nWants={' '.join(wanted)}\n")
        script = 'mount -t tmpfs none /run; mkdir -p /run/systemd/system; exec "$@"'
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script, "sh", "/lib/systemd/systemd", "--user",
             "--unit=all.target"],
            env={"PATH": os.environ["PATH"], "HOME": name, "XDG_RUNTIME_DIR": f"{name}/run",
                 "XDG_CONFIG_HOME": f"{name}/config"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        seen, still = -1, 0
        for _ in range(240):
            time.sleep(1)
            now = len(os.listdir(folder / "out"))
            seen, still = now, still + 1 if now == seen else 0
            if still > 8 and now:
                break
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        found: dict[str, list[list[list[str]]]] = {str(number): [] for number in range(COUNT)}
        for line in (folder / "order").read_text().splitlines():
            which, pid = line.split()
            said = (folder / "out" / f"{which}.{pid}").read_text()
            words, _, variables = said.partition("\1")
            found[which].append([words.split("\0")[:-1], variables.split("\0")[:-1]])
        return found


@contextmanager
def as_before(control: Path) -> Iterator[None]:
    """Turn off again what systemd turned on: containers mount these controllers themselves."""
    before = set(control.read_text().split()) if control.exists() else None
    yield
    if before is not None:
        for more in {*control.read_text().split()} - before:
            control.write_text(f"-{more}")


def main() -> None:
    if shutil.which("unshare") is None or not os.path.exists("/lib/systemd/systemd"):
        raise SystemExit("systemd and unshare are not installed")
    with as_before(Path("/sys/fs/cgroup/unified/cgroup.subtree_control")):
        found = judge()
    JUDGED.parent.mkdir(exist_ok=True)
    rows = (f'"{number}": {json.dumps(said)}' for number, said in found.items())
    JUDGED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"{len(found)} units, {sum(not said for said in found.values())} that started nothing")


def difference(number: int, truth: Any, folder: Path) -> str | None:
    """Return what is read otherwise; None where it is not, "-" for what systemd does not start."""
    text, file = unit(number)
    (folder / "own.env").unlink(missing_ok=True)
    if file is not None:
        (folder / "own.env").write_text(file)
    (folder / "u.service").write_text(text)
    reading = read_source(str(folder / "u.service"), {})
    if not truth:
        return "-"
    for command, (words, variables) in zip(reading.commands, truth, strict=True):
        unset = {name for word in command.words for name in word.unresolved}
        held = {n: w.text for n, w in command.environment.items() if n in VARIABLES}
        if held != dict(each.split("=", 1) for each in variables):
            return f"{held}, not {variables}"
        if not unset and argv(command) != [PROGRAM, *words]:
            return f"{argv(command)}, not {words}"
        if unset & held.keys():
            return f"{unset} are set"
    return None


def test_units_start_what_systemd_starts(tmp_path: Path) -> None:
    """Words and environment of each process of 240 units, of systemd 252."""
    truth = json.loads(JUDGED.read_text())
    found = {number: difference(number, truth[str(number)], tmp_path) for number in range(COUNT)}
    assert {n: said for n, said in found.items() if said not in (None, "-")} == {}
    assert sum(said == "-" for said in found.values()) < COUNT // 6


if __name__ == "__main__":
    main()
