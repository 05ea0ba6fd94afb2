"""Runs experiments inside the guest: sets the pools of each node, starts a process, asks it.

Started with the path of a file of orders; writes one line of JSON per experiment. It imports
nothing of this project.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANK = Path(__file__).with_name("rank.py")
POOL = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/{}_hugepages"
NIC_NODES = Path("/run/nic-nodes")
ALL_PAGES = Path("/proc/sys/vm/nr_hugepages")
OVERCOMMIT = Path("/proc/sys/vm/nr_overcommit_hugepages")
LIMIT_SECONDS = 120
LOG_CHARACTERS = 2000


def bring_up_nics() -> None:
    subprocess.run("ip link set lo up".split(), check=True)
    for number in (0, 1):
        nic, device = f"eth{number}", f"rxe{number}"
        for command in (
            f"ip link set {nic} up",
            f"ip addr add 10.0.{number}.1/24 dev {nic}",
            f"rdma link add {device} type rxe netdev {nic}",
        ):
            subprocess.run(command.split(), check=True)


def used_pages() -> list[int]:
    """2 MiB pages of each node that are in use."""
    counts = []
    for node in (0, 1):
        total, free = (int(Path(POOL.format(node, name)).read_text()) for name in ("nr", "free"))
        counts.append(total - free)
    return counts


def set_pools(pages: list[int], overcommit: int) -> str | None:
    """Give each node so many free pages, once those of the last process are back; else say why."""
    files = [[Path(POOL.format(node, name)) for name in ("nr", "free")] for node in (0, 1)]

    def counts() -> list[list[int]]:
        return [[int(file.read_text()) for file in pair] for pair in files]

    deadline = time.monotonic() + 20
    while any(total != free for total, free in counts()):
        if time.monotonic() > deadline:
            return f"pages in use before the start: {counts()}"
        time.sleep(0.1)
    OVERCOMMIT.write_text("0")
    wanted = [[count, count] for count in pages]
    if counts() != wanted:
        ALL_PAGES.write_text("0")  # surplus pages go as well
        for (total, _free), count in zip(files, pages, strict=True):
            total.write_text(str(count))
    OVERCOMMIT.write_text(str(overcommit))
    return None if counts() == wanted else f"pools of {counts()} instead of {wanted}"


def environment(order: dict[str, Any], preload: str) -> dict[str, str]:
    asked = dict(os.environ, **order["library"]["environment"], **order["environment"])
    nodes = order["nic_nodes"]
    if nodes:
        folder = NIC_NODES / "-".join(str(node) for node in nodes)
        for number, node in enumerate(nodes):
            file = folder / f"rxe{number}" / "numa_node"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{node}\n")
        asked.update(LD_PRELOAD=preload, NIC_NODES=str(folder))
    return asked


class Masters:
    """One mooncake_master per release, started when first asked for."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}

    def address(self, library: dict[str, Any]) -> str:
        program = library["master"]
        if program not in self._ports:
            port = 50100 + 10 * len(self._ports)
            with open("/run/master.log", "ab") as log:
                subprocess.Popen(
                    [program, f"--rpc_port={port}", f"--metrics_port={port + 1}"],
                    stdout=log,
                    stderr=log,
                    env=dict(os.environ, **library["environment"]),
                )
            self._ports[program] = port
            deadline = time.monotonic() + 60
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if time.monotonic() > deadline:
                    raise RuntimeError(Path("/run/master.log").read_text()[-1500:])
                time.sleep(0.1)
        return f"127.0.0.1:{self._ports[program]}"


class Process:
    """One running process of an experiment."""

    def __init__(self, command: list[str], order: dict[str, Any], preload: str) -> None:
        self._output = Path(f"/run/process-{order['port']}.log")
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                env=environment(order, preload),
            )
        assert self._process.stdin
        self._stdin = self._process.stdin
        self._stdin.write(f"{json.dumps(order)}\n")
        self._stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it says once it has allocated, or died."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            ended = self._process.poll()
            log = self._output.read_text(errors="replace")
            said = [line for line in log.splitlines() if line.startswith('{"said"')]
            if said:
                return {**json.loads(said[-1]), "log": log[-LOG_CHARACTERS:]}
            if ended is not None:
                return {"said": f"exit {ended}", "log": log[-LOG_CHARACTERS:]}
            time.sleep(0.1)
        return {"said": f"nothing within {LIMIT_SECONDS} s", "log": ""}

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure(order: dict[str, Any], masters: Masters, port: int, preload: str) -> dict[str, Any]:
    """All processes of one experiment; the answers end with the first that failed."""
    refused = set_pools(order["pools"], order["overcommit"])
    if refused:
        return {"said": [refused], "pages": used_pages()}
    began = time.monotonic()
    master = masters.address(order["library"])
    started: list[Process] = []
    answers: list[dict[str, Any]] = []
    try:
        for number, prefix in enumerate(order["prefixes"]):
            asked = {**order, "master": master, "port": port + number}
            started.append(Process([*prefix, sys.executable, str(RANK)], asked, preload))
            if not order["at_once"]:
                answers.append(started[-1].answer())
                if answers[-1]["said"] != "ok":
                    break
        if order["at_once"]:
            answers = [process.answer() for process in started]
        pages = used_pages()
    finally:
        for process in started:
            process.end()
    return {
        "said": [answer["said"] for answer in answers],
        "pages": pages,
        "log": "\n".join(answer["log"] for answer in answers),
        "seconds": round(time.monotonic() - began, 1),
    }


def main(path: str) -> None:
    orders = json.loads(Path(path).read_text())
    bring_up_nics()
    masters = Masters()
    for number, order in enumerate(orders["experiments"]):
        answer = measure(order, masters, 20000 + 10 * number, orders["preload"])
        print(json.dumps({"id": order["id"], **answer}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
