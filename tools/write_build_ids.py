#!/usr/bin/env python3
"""Write which GNU build ids Mooncake's programs have in the wheels of each release.

    tools/write_build_ids.py 0.3.15    adds a release to checks/software/build_ids.txt
    tools/write_build_ids.py --all     adds every release of the table of flags

Releases are those of preflight/engines/tables/mooncake_flags.txt.

One wheel of each distribution is fetched and not kept. The programs are the same file in the wheels
of all Python versions (compared: 0.3.13.post1, 3.10 to 3.12). Modules are not: they would be one
wheel for each Python, distribution and release, and some have one id in two releases (engine.so of
0.3.13 and 0.3.13.post1). Whether a module is its wheel's own its RECORD tells (calls.py there); of
one that came with no wheel the programs beside it tell the release.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import write_mooncake_flags as flags

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from checks.software.calls import read_elf  # noqa: E402

TABLE = ROOT / "checks" / "software" / "build_ids.txt"
HEAD = """\
# Release, and the GNU build id of a program in one of its wheels: tools/write_build_ids.py.
"""
# Wheels for other Pythons are taken where a release has none for the first.
PYTHONS = ("3.12", "3.11", "3.10")


def build_ids(release: str) -> list[str]:
    """Return the build ids of the programs in a release's wheels, as the registry has them."""
    found: dict[str, None] = {}
    for distribution in flags.DISTRIBUTIONS:
        with TemporaryDirectory() as folder:
            wheel = _wheel(folder, f"{distribution}=={release}")
            if wheel is None:
                continue
            with zipfile.ZipFile(wheel) as archive:
                for program in flags.PROGRAMS:
                    if f"mooncake/{program}" in archive.namelist():
                        elf = read_elf(archive.extract(f"mooncake/{program}", folder))
                        if elf is not None and elf.build_id:
                            found[elf.build_id] = None
    return list(found)


def _wheel(folder: str, wanted: str) -> Path | None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    for python in PYTHONS:
        asked = ["--only-binary=:all:", "--python-version", python, wanted]
        if subprocess.run([*pip, *asked], capture_output=True, check=False).returncode == 0:
            return next(Path(folder).glob("*.whl"))
    return None


def add(releases: list[str]) -> list[str]:
    """Add the build ids of releases to the table; return those that are new there."""
    found = set(re.findall(r"^(\S+) (\w+)$", TABLE.read_text(), re.MULTILINE))
    new = [(release, one) for release in releases for one in build_ids(release)]
    rows = sorted(found.union(new), key=lambda row: (flags.numbers(row[0]), row[1]))
    TABLE.write_text(HEAD + "".join(f"{release} {build_id}\n" for release, build_id in rows))
    return [build_id for release, build_id in new if (release, build_id) not in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="*")
    parser.add_argument("--all", action="store_true", help="every release of the table of flags")
    asked = parser.parse_args()
    wanted = [*flags.read(flags.TABLE.read_text())] if asked.all else asked.release
    if not wanted:
        parser.error("name a release, such as 0.3.15, or --all")
    for release in wanted:
        print(f"{release}: {len(add([release]))} new", flush=True)


if __name__ == "__main__":
    main()
