"""Ports of the host that an engine binds for a container: Compose ``ports:``, ``docker run -p``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Status
from checks.framework.unknown import Unknown
from preflight.launches.compose import read_compose
from preflight.launches.container import host_ports
from preflight.launches.kubernetes import read_kubernetes
from preflight.launches.shell_script import read_script
from preflight.launches.source import Reading
from preflight.processes.ports import all_ports
from preflight.processes.processes import understand
from tests.checks.launches import facts_of, findings, launch
from tests.tables import each_row

SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --port"


@each_row(
    ("text", "expected"),
    [
        ("8000:30000", [(8000, "")]),
        ("0.0.0.0:8000:30000/tcp", [(8000, "")]),
        ("127.0.0.1:8000-8002:8000-8002", [(port, "127.0.0.1") for port in (8000, 8001, 8002)]),
        ("[::1]:8000:80", [(8000, "[::1]")]),
        ("[::]:8000:80", [(8000, "")]),
        ("30000", []),  # the engine takes one that is free
        ("8000-8002:80", []),
        ("53:53/udp", []),
        ("127.0.0.1::80", []),
    ],
)
def test_a_published_port(text: str, expected: Any) -> None:
    assert [(each.port, each.address) for each in host_ports(text, "a", "f:1")] == expected


def verdicts(reading: Reading, folder: Path, taken: Mapping[int, str] = {}) -> dict[str, str]:
    """What network.port-taken says of each port, on a host of which these are taken."""
    processes = understand(reading.commands, lambda name: Unknown(name))
    bound = list(all_ports(processes, reading.published))
    answers: dict[str, object] = {f"network.bind {port.port}": {"free": True} for port in bound}
    for port, error in taken.items():
        answers[f"network.bind {port}"] = {"free": False, "errno": error}
    (folder / "calls.json").write_text(json.dumps(answers))
    needs = launch()._replace(ports=tuple(bound))
    facts = facts_of(folder, "network", needs=needs)
    found = findings(facts, needs, "network.port-taken")
    return {finding.subject: finding.status.value for finding in found}


COMPOSE = f"""\
services:
  a:
    image: i
    command: {SERVER} 30000
    ports: ["8000:30000", "127.0.0.1:9000:9000"]
  b:
    image: i
    command: {SERVER} 30000
    ports: ["${{B:-8000}}:30000", "127.0.0.2:9000:9000", "9100-9101:9100-9101", "$X:4"]
  c:
    image: i
    network_mode: host
    command: {SERVER} 9100
    ports: ["8000:8000"]
  d:
    image: grafana/grafana
    scale: 2
    ports: [{{target: 3000, published: "3000"}}, {{target: 53, published: "53", protocol: udp}}]
  e:
    image: grafana/grafana
    ports: [{{target: 3001, published: 3001, host_ip: 127.0.0.1}}, "3001:1"]
"""


def test_what_services_publish_and_what_the_host_s_network_has(tmp_path: Path) -> None:
    found = verdicts(read_compose(COMPOSE, "c.yml", {}), tmp_path)
    assert found == {
        "HTTP port of SGLang server (c.yml:4)": "pass",
        "HTTP port of SGLang server (c.yml:8)": "pass",
        "HTTP port of SGLang server (c.yml:13)": "fail",
        "published port 8000 of service a (c.yml:3)": "fail",
        "published port 9000 of service a (c.yml:3)": "pass",
        "published port 8000 of service b (c.yml:7)": "fail",
        "published port 9000 of service b (c.yml:7)": "pass",
        "published port 9100 of service b (c.yml:7)": "fail",
        "published port 9101 of service b (c.yml:7)": "pass",
        "published port of service b (c.yml:7)": "unknown",
        "published port 3000 of service d (c.yml:16)": "fail",  # each copy of it binds it
        "published port 3001 of service e (c.yml:20)": "fail",
    }


PODS = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: d}}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - name: s
        command: [bash, -c, "{SERVER} 30000"]
        ports: [{{containerPort: 30000, hostPort: 8000}}, {{hostPort: 53, protocol: UDP}}]
      - name: metrics
        image: i
        ports: [{{containerPort: 1, hostPort: 8000, hostIP: 127.0.0.1}}, {{containerPort: 2}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: e}}
spec:
  template:
    spec:
      containers:
      - name: s
        command: [bash, -c, "{SERVER} 30000"]
        ports: [{{containerPort: 30000, hostPort: 8000}}, {{containerPort: 1, hostPort: many}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: f}}
spec:
  hostNetwork: true
  containers:
  - name: s
    command: [bash, -c, "{SERVER} 8001"]
    ports: [{{containerPort: 8001, hostPort: 8001}}]
"""


@pytest.mark.parametrize(("error", "expected"), [("EADDRINUSE", "fail"), ("EACCES", "unknown")])
def test_host_ports_of_pods(tmp_path: Path, error: str, expected: str) -> None:
    # Two pods of one hostPort are never on one node; one that is taken there is a failure.
    found = verdicts(read_kubernetes(PODS, "p.yaml"), tmp_path, {8000: error})
    assert found == {
        "HTTP port of SGLang server (p.yaml:10)": "pass",
        "HTTP port of SGLang server (p.yaml:24)": "pass",
        "HTTP port of SGLang server (p.yaml:34)": "pass",  # its own, and no second user of it
        "hostPort 8000 of container s of Deployment/d (p.yaml:11)": expected,
        "hostPort 8000 of container metrics of Deployment/d (p.yaml:14)": expected,
        "hostPort 8000 of container s of DaemonSet/e (p.yaml:25)": expected,
        "hostPort of container s of DaemonSet/e (p.yaml:25)": "unknown",
    }


DP_ATTENTION = "--tp 2 --dp 2 --enable-dp-attention"


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        # torch's store of rank 0 and the server's own HTTP, which starts later.
        (f"{SERVER} 30000 --dist-init-addr 10.0.0.1:30000", {30000}),
        (f"{SERVER} 30000 --nccl-port 30000", {30000}),
        (f"{SERVER} 30000 --nccl-port 30001 &\n{SERVER} 30001", {30001}),
        (f"{SERVER} 1 --dist-init-addr h:9 &\n{SERVER} 2 --dist-init-addr h:9", {9}),
        # Two machines of one script, as their addresses say.
        (f"{SERVER} 1 --dist-init-addr a:9 &\n{SERVER} 2 --dist-init-addr b:9", set()),
        # --nccl-port is not read beside --dist-init-addr, nor either with the variable.
        (f"{SERVER} 30000 --dist-init-addr h:9 --nccl-port 30000", set()),
        (f"SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE=env:// {SERVER} 9 --dist-init-addr h:9", set()),
        # Another node than rank 0 binds neither.
        (f"{SERVER} 9 --nnodes 2 --node-rank 1 --dist-init-addr h:9", set()),
        # DP attention binds +1, +2 and +5 of --dist-init-addr, or of the HTTP port + 233.
        (f"{SERVER} 1 {DP_ATTENTION} &\n{SERVER} 2 {DP_ATTENTION}", {236}),
        (f"{SERVER} 1 {DP_ATTENTION} &\n{SERVER} 11 {DP_ATTENTION}", set()),
        (
            f"{SERVER} 1 --dist-init-addr h:90 {DP_ATTENTION} &\n{SERVER} 2 --dist-init-addr h:92",
            {92},
        ),
        # One after the other: the first has ended.
        (f"{SERVER} 1 --dist-init-addr h:9\n{SERVER} 2 --dist-init-addr h:9", set()),
        (f"{SERVER} 30000", set()),
    ],
)
def test_where_the_processes_of_a_server_meet(tmp_path: Path, text: str, taken: set[int]) -> None:
    """Nothing is said of such a port, on the host or of its range, but where two want it."""
    reading = read_script(text, "run.sh", {})
    processes = understand(reading.commands, lambda name: Unknown(name))
    needs = launch()._replace(ports=tuple(all_ports(processes)))
    free = {f"network.bind {port.port}": {"free": True} for port in needs.ports if not port.inner}
    (tmp_path / "calls.json").write_text(json.dumps(free))
    facts = facts_of(tmp_path, "network", needs=needs)
    found = findings(facts, needs, "network.port-taken")
    failed = {one.need for one in found if one.status is Status.FAIL}
    assert failed == {f"port {number} for one alone" for number in taken}
    assert not [one for one in found if one.status is Status.UNKNOWN]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("", "fail"),
        ('"${ARGS[@]}"', "unknown"),  # which may hold --port
        ("$EXTRA", "unknown"),
        ("--port 30000 $EXTRA", "fail"),
        ("--mem-fraction-static $FRACTION", "fail"),  # of this flag alone
    ],
)
def test_a_port_that_a_word_may_change_is_no_conflict(
    tmp_path: Path, words: str, status: str
) -> None:
    start = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B"
    reading = read_script(f"source missing.sh\n{start} {words} &\n{start} &\n", "launch.sh", {})
    said = verdicts(reading, tmp_path)
    assert {each.partition(":")[0].split()[0] for each in said.values()} == {status}
    held = verdicts(read_script(f"{start} {words}", "l", {}), tmp_path, {30000: "EADDRINUSE"})
    assert {each.partition(":")[0].split()[0] for each in held.values()} == {status}
