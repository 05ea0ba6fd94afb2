"""Runs experiments inside the guest: sets the pools of each node, starts a process, asks it.

Started with the path of a file of orders; writes one line of JSON per experiment. It imports
nothing of this project.
"""

from __future__ import annotations

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


def environment(order: dict[str, Any]) -> dict[str, str]:
    """What the process has in its environment besides the library's own."""
    asked: dict[str, str] = dict(order["environment"])
    nodes = order["nic_nodes"]
    if nodes:
        folder = NIC_NODES / "-".join(str(node) for node in nodes)
        for number, node in enumerate(nodes):
            file = folder / f"rxe{number}" / "numa_node"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{node}\n")
        asked.update(NIC_NODES=str(folder))
    return asked


class Masters:
    """One mooncake_master per release, started when first asked for."""

    def __init__(self, first_port: int = 50100) -> None:
        self._first_port = first_port
        self._ports: dict[str, int] = {}

    def address(self, library: dict[str, Any]) -> str:
        program = library["master"]
        if program not in self._ports:
            port = self._first_port + 10 * len(self._ports)
            with open("/run/master.log", "ab") as log:
                subprocess.Popen(
                    [program, f"--rpc_port={port}", f"--metrics_port={port + 1}"],
                    stdout=log,
                    stderr=log,
                    env=dict(os.environ, **library["environment"]),
                )
            self._ports[program] = port
            deadline = time.monotonic() + 400
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if time.monotonic() > deadline:
                    raise RuntimeError(Path("/run/master.log").read_text()[-1500:])
                time.sleep(0.1)
        return f"127.0.0.1:{self._ports[program]}"


class Ranks:
    """A server of processes that have loaded one library; see ``rank.py``."""

    def __init__(self, library: dict[str, Any], preload: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-S", str(RANK)],  # what site packages bring slows the start
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, LD_PRELOAD=preload, **library["environment"]),
        )

    def ask(self, **order: Any) -> int | None:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(f"{json.dumps(order)}\n")
        self._server.stdin.flush()
        for line in self._server.stdout:  # the library may print while it is loaded
            if line.startswith('{"answer"'):
                answer: int | None = json.loads(line)["answer"]
                return answer
        raise RuntimeError(f"the server of ranks ended: {self._server.wait()}")


class Process:
    """One running process of an experiment."""

    def __init__(self, ranks: Ranks, order: dict[str, Any], node: int | None) -> None:
        self._ranks = ranks
        self._output = Path(f"/run/process-{order['port']}.log")
        asked = {
            **order,
            "do": "start",
            "log": str(self._output),
            "environment": environment(order),
            "cpu_node": order["cpus"] if node is None else node,
            "memory_node": node,
        }
        self._pid = ranks.ask(**asked)
        self._ended: int | None = None

    def answer(self) -> dict[str, Any]:
        """What it says once it has allocated, or died."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            self._ended = self._ranks.ask(do="poll", pid=self._pid)
            log = self._output.read_text(errors="replace") if self._output.exists() else ""
            said = [line for line in log.splitlines() if line.startswith('{"said"')]
            if said:
                return {**json.loads(said[-1]), "log": log[-LOG_CHARACTERS:]}
            if self._ended is not None:
                return {"said": f"exit {self._ended}", "log": log[-LOG_CHARACTERS:]}
            time.sleep(0.05)
        return {"said": f"nothing within {LIMIT_SECONDS} s", "log": ""}

    def end(self) -> None:
        if self._ended is None:
            self._ranks.ask(do="end", pid=self._pid)


def measure(order: dict[str, Any], masters: Masters, ranks: Ranks, port: int) -> dict[str, Any]:
    """All processes of one experiment; the answers end with the first that failed."""
    refused = set_pools(order["pools"], order["overcommit"])
    if refused:
        return {"said": [refused], "pages": used_pages()}
    began = time.monotonic()
    master = masters.address(order["library"])
    started: list[Process] = []
    answers: list[dict[str, Any]] = []
    try:
        for number, node in enumerate(order["bound"]):
            asked = {**order, "master": master, "port": port + number}
            started.append(Process(ranks, asked, node))
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
    servers: dict[str, Ranks] = {}
    for number, order in enumerate(orders["experiments"]):
        library = order["library"]
        if library["master"] not in servers:
            servers[library["master"]] = Ranks(library, orders["preload"])
        ranks = servers[library["master"]]
        answer = measure(order, masters, ranks, 20000 + 10 * number)
        print(json.dumps({"id": order["id"], **answer}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
