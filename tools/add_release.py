#!/usr/bin/env python3
"""Add a release of Mooncake or SGLang: its flags, what differs from the last one, conformance.

    tools/add_release.py mooncake 0.3.15
    tools/add_release.py sglang 0.5.24

Fetches the wheel, writes the release's flags and its names of variables into
preflight/engines/tables and the build ids of its programs into checks/software, prints what differs
from the newest one before it (flags, names of variables, definitions that the model follows), error
messages that the tables of logs do not know, and which of the changes that upstream had open are in
it, and runs the tests that hold the model against the real release; those of Mooncake set
vm.nr_hugepages, as root. What is printed as changed has to be read; a fact that it changes is a row
in checks/releases. With that row written, the same command runs the tests again.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import log_messages
import write_build_ids
import write_known_environment as environment
import write_mooncake_flags as mooncake
import write_sglang_arguments as sglang
from sglang_wheels import unpacked

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from checks.releases import mooncake as mooncake_releases  # noqa: E402
from checks.releases import sglang as sglang_releases  # noqa: E402
from checks.releases.open_changes import OpenChange, open_changes  # noqa: E402
from preflight.processes.unread import without_row  # noqa: E402

RELEASES = {"mooncake": mooncake_releases, "sglang": sglang_releases}
# What the model of SGLang follows, below sglang/srt: what is defined in these files, or what is
# named after a colon.
FOLLOWED = (
    "configs/model_config.py",
    "distributed/utils.py",
    "utils/numa_utils.py",
    "arg_groups/*hicache*.py",
    "arg_groups/overrides.py",
    "disaggregation/utils.py",
    "disaggregation/decode_kvcache_offload_manager.py",
    "mem_cache/memory_pool_host.py",
    "mem_cache/pool_host/*.py",
    "mem_cache/host_memory.py",
    "mem_cache/hicache_auto_size.py",
    "mem_cache/kv_cache_configurator.py",
    "mem_cache/*radix_cache.py: writing_check _finish_write_through_ack prefetch_from_storage",
    "managers/cache_controller.py: attach_storage_backend prefetch_rate_limited",
    "mem_cache/hybrid_cache/hybrid_pool_assembler.py",
    "mem_cache/storage/mmap/*.py",
    "mem_cache/storage/mooncake_store/*.py",
)


def differences(
    old: Mapping[str, str], new: Mapping[str, str], values: bool = True
) -> Iterable[str]:
    """Yield what is new, gone and changed, by name; with its value where that is asked for."""
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield f"new      {name} {new[name]}".rstrip() if values else f"new      {name}"
        elif name not in new:
            yield f"gone     {name}"
        elif old[name] != new[name]:
            yield f"changed  {name} {old[name]} -> {new[name]}" if values else f"changed  {name}"


def say(title: str, lines: Iterable[str]) -> None:
    print(f"\n{title}")
    for line in list(lines) or ["nothing"]:
        print(f"  {line}")


def add_mooncake(release: str) -> None:
    found = mooncake.read(mooncake.TABLE.read_text())
    last = max((one for one in found if one != release), key=mooncake.numbers)
    found[release] = mooncake.flags_of(release)
    mooncake.TABLE.write_text(mooncake.written(found))
    for program in mooncake.PROGRAMS:
        says = differences(found[last][program], found[release][program])
        say(f"{program}: flags of {release} beside those of {last}", says)
    say_names(*({*environment.names_of_mooncake(one)} for one in (last, release)))
    names = {"flag": [n for flags in found[release].values() for n in flags]}
    say_without_row(names | {"variable": environment.names_of_mooncake(release)})
    say("Build ids of its programs, not known before", write_build_ids.add([release]))
    say_open_changes("mooncake", mooncake.installed(release))
    say_messages("mooncake", mooncake.installed(release))


def add_sglang(release: str) -> None:
    found = sglang.declared(json.loads(sglang.TABLE.read_text()))
    last = max((one for one in found if one != release), key=sglang.numbers)
    found[release] = sglang.real(release, [])["rows"]
    sglang.TABLE.write_text(sglang.compact(found))
    changed = argument_differences(found[last], found[release])
    say(f"Arguments of {release} beside those of {last}", changed)
    old, new = ({*environment.names_of_sglang(one)} for one in (last, release))
    say_names(old, new)
    say_without_row({"argument": [row["name"] for row in found[release]], "variable": new})
    environment.add(set(), last, old - new)
    for pattern in FOLLOWED:
        before, after = definitions(last, pattern), definitions(release, pattern)
        changes = list(differences(before, after, values=False))
        if changes:
            say(pattern, changes)
    say_open_changes("sglang", unpacked(release))
    say_messages("sglang", unpacked(release))


def say_messages(program: str, folder: Path) -> None:
    """Say which error messages need a row in preflight/server_logs, or one in
    tools/log_messages.toml.
    """
    new = (
        f"{name}: {text}"
        for why, name, text in log_messages.decided(program, folder)
        if why == "new"
    )
    say("Error messages that the tables of logs neither know nor leave out", new)


def say_without_row(names: Mapping[str, Iterable[str]]) -> None:
    """Say which names preflight/engines/tables/launch_names.txt does not have: each needs a row."""
    lines = (f"{kind} {name}" for kind, found in names.items() for name in without_row(kind, found))
    say("Without a row in preflight/engines/tables/launch_names.txt", lines)


def say_open_changes(program: str, folder: Path) -> None:
    """Say of each change that upstream had open whether the wheel in ``folder`` has its mark."""
    says = (
        f"{found_in(one, folder):<8} {one.changes} ({', '.join(one.pulls)}): {one.fact}"
        for one in open_changes(program)
    )
    say("What upstream had open, and the field that a release's row will have for it", says)


def found_in(change: OpenChange, folder: Path) -> str:
    """Return "in", "not in", or "read it" of a change that has no mark."""
    for pattern, text in change.marks:
        for file in folder.glob(pattern):
            if file.is_file() and text.lower().encode() in file.read_bytes().lower():
                return "in"
    return "not in" if change.marks else "read it"


def argument_differences(before: sglang.Rows, after: sglang.Rows) -> Iterable[str]:
    """Yield which arguments are new and gone, and of a changed one what of it is."""
    old, new = ({row["name"]: row for row in rows} for rows in (before, after))
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            row = old.get(name) or new[name]
            yield f"{'gone' if name in old else 'new':<8} {' '.join(row['flags'])}"
            continue
        for change in differences(_parts(old[name]), _parts(new[name])):
            yield f"changed  {name}: {change}"


def _parts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what a row says, each of several choices and flags for itself."""
    found: dict[str, str] = {}
    for key, value in row.items():
        found |= (
            {f"{key} {one}": "" for one in value} if isinstance(value, list) else {key: str(value)}
        )
    return found


def say_names(old: set[str], new: set[str]) -> None:
    """Add the names of variables to the known ones; say what differs, and which were known."""
    added = {*environment.add(new)}
    one, other = (
        {name: "" if name in added else "(known)" for name in names} for names in (old, new)
    )
    say("Names of variables, which are known from now on", differences(one, other))


def definitions(release: str, pattern: str) -> dict[str, str]:
    """Return each function and method, as ``file: name``, with its code less its docstrings."""
    found: dict[str, str] = {}
    source = unpacked(release) / "sglang" / "srt"
    files, _, names = pattern.partition(": ")
    for file in sorted(source.glob(files)):
        tree = ast.parse(file.read_text())
        for outer in tree.body:
            inside = outer.body if isinstance(outer, ast.ClassDef) else [outer]
            for node in inside:
                if isinstance(node, ast.FunctionDef) and (not names or node.name in names.split()):
                    first = node.body[0]
                    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                        node.body = node.body[1:] or [ast.Pass()]
                    owner = f"{outer.name}." if isinstance(outer, ast.ClassDef) else ""
                    found[f"{file.name}: {owner}{node.name}"] = ast.dump(node)
    return found


def conformance(program: str, release: str) -> int:
    """Run the tests of the real release; return pytest's exit code."""
    tests = {
        "mooncake": ["tests/real/test_conformance.py", "-k", f"each_row and {release}"],
        "sglang": ["tests/engines/sglang/test_conformance.py", "-k", f"asked and {release}"],
    }
    asked = {"MOONCAKE_PREFLIGHT_RELEASE": release, f"MOONCAKE_PREFLIGHT_{program.upper()}": "1"}
    allowed = {"MOONCAKE_PREFLIGHT_REAL": "1"} if program == "mooncake" else {}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *tests[program]]
    print(f"\nConformance: {' '.join(command[2:])}", flush=True)
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **asked, **allowed}, check=False)
    row = f'_change("{release}", ...) in checks/releases/{program}.py'
    if done.returncode:
        print(f"\nIt does what the newest row does not say: write {row}, and run this again.")
    elif RELEASES[program].newer_than_known(release):
        print(f"\nNo test differs: write {row}, with what reading the changes above shows.")
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=["mooncake", "sglang"])
    parser.add_argument("release", help="as the registry spells it, such as 0.3.15")
    asked = parser.parse_args()
    if asked.program == "mooncake":
        add_mooncake(asked.release)
    else:
        add_sglang(asked.release)
    sys.exit(conformance(asked.program, asked.release))


if __name__ == "__main__":
    main()
