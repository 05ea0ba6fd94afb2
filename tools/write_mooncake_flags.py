#!/usr/bin/env python3
"""Write the table of Mooncake's flags, as the programs of each release list them themselves.

    tools/write_mooncake_flags.py 0.3.15    adds a release
    tools/write_mooncake_flags.py --all     makes the table anew, of its releases

The table is preflight/engines/tables/mooncake_flags.txt.

The wheels, and the CUDA runtime that some of them link, are fetched once and kept below
.cache/mooncake; a driver that is not there is stood in for (gcc). What else a release changed is a
row of checks/releases/mooncake.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "preflight" / "engines" / "tables" / "mooncake_flags.txt"
CACHE = ROOT / ".cache" / "mooncake"
PROGRAMS = ("mooncake_master", "mooncake_client")
HEAD = """\
# Flags that mooncake_master and mooncake_client list themselves: tools/write_mooncake_flags.py.
# type name [since [until]], where not every release has it.
"""
# Distributions that a release may be published as; the first that is there is taken.
DISTRIBUTIONS = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine",
)
RUNTIMES = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime==13.*")
_LISTED = re.compile(r"\n    -(\w+) \(.*?\)\s+type:\s+(\w+)", re.DOTALL)

Flags = dict[str, str]  # name -> type


def listed(program: Path, libraries: str) -> Flags:
    """Return the flags that ``program --helpfull`` lists; none of a program that is not there."""
    if not program.exists():
        return {}
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    done = subprocess.run(
        [str(program), "--helpfull"], capture_output=True, text=True, env=environment, check=False
    )
    found = dict(_LISTED.findall(done.stdout))
    if not found:
        raise RuntimeError(f"{program}: {done.stderr[-400:]}")
    return found


def installed(release: str) -> Path:
    """Return the folder of a release's wheel; installed once."""
    said = ""
    for distribution in DISTRIBUTIONS:
        folder = CACHE / f"{distribution}-{release}"
        said = _not_installed(folder, f"{distribution}=={release}")
        if not said:
            return folder
    raise SystemExit(f"{release}: none of {', '.join(DISTRIBUTIONS)} can be installed: {said}")


def flags_of(release: str) -> dict[str, Flags]:
    """Return the flags of both programs of a release, from its wheel."""
    folder = installed(release)
    _stand_in(folder)
    places = {path.parent for path in folder.rglob("libcu*.so*")}
    libraries = ":".join(sorted(map(str, places)))
    return {name: listed(folder / "mooncake" / name, libraries) for name in PROGRAMS}


def _not_installed(folder: Path, distribution: str) -> str:
    """Install into ``folder``, once; return why that cannot be, "" where it is there."""
    if (folder / "installed").exists():
        return ""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--no-deps"]
    command = [*pip, "--target", str(folder), distribution, *RUNTIMES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()[-400:] or f"pip ended with {done.returncode}"
    (folder / "installed").touch()
    return ""


def _stand_in(folder: Path) -> None:
    """Make a libcuda.so.1 of which each function that a program links answers "no device"."""
    driver = folder / "libcuda.so.1"
    if driver.exists():
        return
    names: set[bytes] = set()
    for file in (folder / "mooncake").iterdir():
        if file.is_file():
            names.update(re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", file.read_bytes()))
    source = "".join(f"int {name.decode()}(void) {{ return 100; }}\n" for name in sorted(names))
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(driver)]
    subprocess.run(command, input=source, text=True, check=True)


def written(releases: Mapping[str, Mapping[str, Flags]]) -> str:
    """Return the file for the flags of each release; a type is that of the newest that has it."""
    order = sorted(releases, key=numbers)
    lines = [f"{HEAD}releases {' '.join(order)}"]
    for program in PROGRAMS:
        lines.append(f"program {program}")
        types: Flags = {}
        for release in order:
            types.update(releases[release][program])
        for name, kind in sorted(types.items()):
            having = [release for release in order if name in releases[release][program]]
            since, until = having[0], having[-1]
            row = [kind, name]
            if until != order[-1]:
                row += [since, until]
            elif since != order[0]:
                row.append(since)
            lines.append(" ".join(row))
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, dict[str, Flags]]:
    """Return the flags of each release that a written table has: what ``written`` made it of."""
    order: list[str] = []
    found: dict[str, dict[str, Flags]] = {}
    program = ""
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "releases":
            order = words
            found = {release: {name: {} for name in PROGRAMS} for release in order}
        elif kind == "program":
            program = words[0]
        elif kind != "#":
            since, until = [*words[1:], *(order[0], order[-1])[len(words) - 1 :]]
            for release in order[order.index(since) : order.index(until) + 1]:
                found[release][program][words[0]] = kind
    return found


def numbers(version: str) -> tuple[int, ...]:
    """Return ``0.3.13.post1`` as ``(0, 3, 13, 1)``."""
    return tuple(int(part.removeprefix("post")) for part in version.split("."))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="*", help="to add, or to read anew")
    parser.add_argument("--all", action="store_true", help="read every release of the table anew")
    asked = parser.parse_args()
    found = read(TABLE.read_text())
    wanted = [*found, *asked.release] if asked.all else asked.release
    if not wanted:
        parser.error("name a release, such as 0.3.15, or --all")
    for release in wanted:
        print(release, file=sys.stderr)
        found[release] = flags_of(release)
    TABLE.write_text(written(found))


if __name__ == "__main__":
    main()
