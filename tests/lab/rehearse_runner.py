"""Rehearses launches inside the guest, and counts the pages that it leaves taken; and sizes some.

Started with the path of a file of orders; writes one line of JSON per answer. Emulated, a Python
that starts takes seconds, so the command is a fork of this process, which has loaded it already.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.lab.supervisor import environment, set_pools, used_pages
from tests.rows import flat

PLACE = Path("/run/rehearse")
SCRIPT = PLACE / "launch.sh"
CGROUPS = Path("/sys/fs/cgroup")
UID = 1000
# What a rehearsal may bring with it; the guest's own is not the launch's.
OURS = ("MC_", "MOONCAKE_", "NIC_NODES")


def command(order: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The exit code of the program with ``words``, and what it said. Without any words: of a
    rehearsal of the processes that are named one by one."""
    output = PLACE / "output"
    code = _run(order, words, output)
    text = output.read_text(errors="replace")
    answer = None
    with contextlib.suppress(ValueError):
        answer = flat(json.loads(text))
    return {
        "code": code,
        "answer": answer,
        "said": "" if answer else text[-1500:],
        "errors": Path(f"{output}.err").read_text(errors="replace")[-1500:],
    }


def _run(order: dict[str, Any], words: list[str], output: Path) -> int:
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 71
    try:
        with output.open("wb") as file, Path(f"{output}.err").open("wb") as errors:
            os.dup2(file.fileno(), 1)
            os.dup2(errors.fileno(), 2)
        for name in [name for name in os.environ if name.startswith(OURS)]:
            del os.environ[name]
        os.environ.update(environment({**order, "environment": {}}))
        use_library(order)
        if order.get("hugetlb_mib") is not None:
            enter_cgroup(order["hugetlb_mib"])
        if order["memlock_kib"] is not None:
            limit = 1024 * order["memlock_kib"]
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
        if words:
            from preflight.cli.main import run

            code = run(words)
        else:
            from tests.lab.rehearse_staged import rehearse_staged

            code = rehearse_staged(order["processes"], order["pools"], order["nic_nodes"])
        sys.stdout.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def use_library(order: dict[str, Any]) -> None:
    """Mooncake, and what libibverbs is told of huge pages, as ``order`` has them."""
    library = order.get("library")
    if library is not None:
        os.environ.update(library["environment"])
        sys.path[:0] = [library["folder"]]
    if order.get("huge_pages_safe", True):
        os.environ["RDMAV_HUGEPAGES_SAFE"] = "1"


def set_processors(count: int) -> None:
    """So many are online; the guest starts with two, and has as many on either node."""
    for number in range(2, 6):
        file = Path(f"/sys/devices/system/cpu/cpu{number}/online")
        wanted = str(int(number < count))
        if file.exists() and file.read_text().strip() != wanted:
            file.write_text(wanted)


def rehearse(order: dict[str, Any]) -> dict[str, Any]:
    refused = set_pools(order["pools"], 0)
    set_processors(order.get("processors", 2))
    SCRIPT.write_text(order["script"])
    staged = bool(order.get("processes"))
    captured = capture(order, () if staged else of_launch(order["words"]))
    began = time.monotonic()
    words = [] if staged else ["measure", "--rehearse", "--json", *order["words"], str(SCRIPT)]
    found = command(order, words)
    return {
        "rehearsal": order["id"],
        **captured,
        **found,
        "said": refused or found["said"],
        "left": used_pages(),
        "seconds": round(time.monotonic() - began, 2),
    }


def of_launch(words: list[str]) -> tuple[str, ...]:
    """The script, after those of ``words`` that say something of the launch."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return (*(word for pair in pairs for word in pair if pair[0] != "--scale"), str(SCRIPT))


def capture(order: dict[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """A capture of this guest, with the launch of ``words``, in base64: where it is asked for."""
    if not order.get("captured"):
        return {}
    file = PLACE / "capture.tar.gz"
    file.unlink(missing_ok=True)
    found = command(order, ["capture", "--timeout", "120", str(file), *words])
    content = base64.b64encode(file.read_bytes()).decode() if file.exists() else ""
    return {"capture": content, "capture_said": found["said"] + found["errors"]}


def fit(order: dict[str, Any]) -> dict[str, Any]:
    """Sized and written, the pools set as fit says, then rehearsed; and with one step more."""
    refused = set_pools([0, 0], 0)
    SCRIPT.write_text(order["script"])
    os.chown(SCRIPT, UID, UID)
    captured = capture(order, of_launch(order["words"]))
    began = time.monotonic()
    asked = "fit --json --goal pool --keep 0 --write --timeout 120".split()
    found = command(order, [*asked, *order["words"], str(SCRIPT)])
    rehearsed = []
    answer = found["answer"] or {}
    if answer.get("written"):
        pools, value = planned(answer["pools"]), answer["sizes"]["segment"]["value"]
        more = str(answer["bounds"][0]["value_bytes"])
        # So many pages that it is not for them that one step more fails.
        for text, pages in ((value, pools), (more, [count + 8 * any(pools) for count in pools])):
            script = SCRIPT.read_text().replace(value, text)
            again = {**order, "script": script, "pools": pages}
            rehearsed.append({"segment": text, **rehearse(again)})
    return {
        "fitting": order["id"],
        **captured,
        **found,
        "said": refused or found["said"],
        "rehearsed": rehearsed,
        "seconds": round(time.monotonic() - began, 2),
    }


def planned(pools: list[dict[str, Any]]) -> list[int]:
    """Pages on each node; of those on any node each has half."""
    pages = [0, 0]
    for pool in pools:
        for node in (0, 1):
            if pool["numa_node"] is None:
                pages[node] += (pool["pages"] + 1 - node) // 2
            elif pool["numa_node"] == node:
                pages[node] += pool["pages"]
    return pages


def enter_cgroup(hugetlb_mib: int) -> None:
    """This process into a cgroup that may reserve so many huge pages, and no more."""
    if not (CGROUPS / "cgroup.controllers").exists():
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(CGROUPS)], check=True)
        (CGROUPS / "cgroup.subtree_control").write_text("+hugetlb +memory")
    own = CGROUPS / "limited"
    own.mkdir(exist_ok=True)
    (own / "hugetlb.2MB.rsvd.max").write_text(str(hugetlb_mib << 20))
    (own / "cgroup.procs").write_text(str(os.getpid()))


def prepare(readable: list[str]) -> None:
    """Both devices in one subnet, so that values get from either to the other."""
    PLACE.mkdir()
    os.chown(PLACE, UID, UID)
    for path in readable:
        for folder in (Path(path), *Path(path).parents):
            if folder.stat().st_mode & 0o005 != 0o005:
                folder.chmod(folder.stat().st_mode | 0o055)
    for number in (0, 1):
        nic = f"eth{number}"
        for words in (f"ip addr flush dev {nic}", f"ip addr add 10.0.2.{number + 1}/24 dev {nic}"):
            subprocess.run(words.split(), check=True)


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    prepare(orders["readable"])
    for name in ("benchmark.rehearsal.rehearse", "benchmark.rehearsal.run"):
        import_module(f"preflight.{name}")  # once for all the forks
    for name in ("command_inputs.written_launch", "launches.shell_script"):
        import_module(f"preflight.{name}")
    for order in orders["rehearsals"]:
        print(json.dumps(rehearse(order)), flush=True)
    if orders["fittings"]:
        for name in ("cache_sizing.fit.fit_launch", "cache_sizing.fit.report"):
            import_module(f"preflight.{name}")
    for order in orders["fittings"]:
        print(json.dumps(fit(order)), flush=True)


if __name__ == "__main__":
    main()
