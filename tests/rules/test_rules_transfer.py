"""Disaggregation: threads of a prefill server, and what its decode servers and router say."""

from __future__ import annotations

import pytest

from checks.base.unknown import Unknown
from preflight.launches.compose import read_compose
from preflight.processes.processes import understand
from preflight.rules.launch_rules import findings
from tests.builders.launch_text import SERVER
from tests.builders.rule_examples import Example, Line, prove
from tests.tables import each_row

ID = "transfer-threads-too-few"
PREFILL = f"{SERVER} --disaggregation-mode prefill"
DECODE = f"{SERVER} --disaggregation-mode decode"
AT = "--disaggregation-bootstrap-port"
ROUTER = "python3 -m sglang_router.launch_router --pd-disaggregation"


def prefill(line: str = PREFILL, **variables: str) -> Line:
    names = {"pool": "THREAD_POOL_SIZE", "queues": "QUEUE_SIZE"}
    return (line, {f"SGLANG_DISAGGREGATION_{names[key]}": text for key, text in variables.items()})


EXAMPLES = [
    Example(ID, "8 threads, for 16 queues").of(
        (prefill(pool="8", queues="16"),), (prefill(pool="16", queues="16"),)
    ),
    Example(ID, "12 threads at most, as", (prefill(queues="13"),), (prefill(queues="12"),)),
    Example(ID, "1 thread, for 4 queues").of(
        (prefill(pool="1"),), (prefill(f"{SERVER} --disaggregation-mode decode", pool="1"),)
    ),
    Example(ID, "1 thread", (prefill(pool="1"),), (prefill(pool="$N"),)),
    # One of two decode servers fits, one is not known, and one half of a pair is not here.
    *(
        Example("pd-backends-differ", "over nixl").of(
            (PREFILL, f"{DECODE} --disaggregation-transfer-backend nixl"), right
        )
        for right in (
            (PREFILL, DECODE, f"{DECODE} --disaggregation-transfer-backend nixl"),
            (PREFILL, f"{DECODE} --disaggregation-transfer-backend $BACKEND"),
            (f"{DECODE} --disaggregation-transfer-backend nixl",),
        )
    ),
    # Without one in the URL decode takes its own.
    Example(
        "pd-bootstrap-differs", "is 9000; the router says none, and decode takes its own, 8998"
    ).of(
        (f"{PREFILL} {AT} 9000", DECODE, f"{ROUTER} --prefill http://localhost:30000"),
        (
            f"{PREFILL} {AT} 9000",
            f"{DECODE} {AT} 9000",
            f"{ROUTER} --prefill http://localhost:30000",
        ),
    ),
    Example(
        "pd-bootstrap-differs",
        "the router says 9000",
        (PREFILL, f"{ROUTER} --prefill http://10.0.0.1:30000 9000 --decode http://10.0.0.2:1"),
        # The router knows two, and the launch shows one: which it is is not known.
        (
            PREFILL,
            f"{ROUTER} --prefill http://10.0.0.1:30000 9000 --prefill http://10.0.0.2:30000 8998",
        ),
    ),
    Example("pd-bootstrap-differs", "the router says 9000").of(
        (PREFILL, f"{ROUTER} --prefill http://localhost:30000 9000"),
        (f"{PREFILL} {AT} $PORT", f"{ROUTER} --prefill http://localhost:30000 9000"),
    ),
    Example("pd-router-misdirected", "runs with --disaggregation-mode null").of(
        (SERVER, f"{ROUTER} --prefill http://localhost:30000"),
        (f"{SERVER} --disaggregation-mode $MODE", f"{ROUTER} --prefill http://localhost:30000"),
    ),
]


@each_row("example", EXAMPLES)
def test_rule_finds_what_is_wrong_and_nothing_where_it_is_right(example: Example) -> None:
    prove(example)


def test_a_router_of_compose_is_held_against_the_service_that_it_names() -> None:
    """Both listen on one port, each in a network of its own."""
    text = f"""
services:
  one: {{image: x, command: {PREFILL}}}
  two: {{image: x, command: {DECODE}}}
  router:
    image: x
    command: >-
      {ROUTER} --prefill http://two:30000 --decode http://one:30000 --prefill http://one:30000
      --decode http://two:30001 --decode http://elsewhere:30001
"""
    processes = understand(read_compose(text, "compose.yaml", {}).commands, Unknown)
    said = [one.text for one in findings(processes) if one.rule.id == "pd-router-misdirected"]
    assert said == [
        "router: --prefill http://two:30000: that server runs with --disaggregation-mode decode",
        "router: --decode http://one:30000: that server runs with --disaggregation-mode prefill",
        "router: --decode http://two:30001: that service listens on port 30000",
    ]


@pytest.mark.parametrize(
    ("master", "address", "said"),
    [
        ("", "master:50052", "master master:50052: that service listens on port 50051"),
        ("--rpc_port 50052", "master:50052", ""),
        ("--rpc_port $PORT", "master:50052", ""),
        ("", "other:50052", ""),
        ("", "master.example.com:50052", ""),
    ],
)
def test_a_service_of_compose_is_called_at_a_port_that_it_has(
    master: str, address: str, said: str
) -> None:
    """Which ports are published decides nothing between two containers."""
    text = f"""
services:
  master: {{image: x, command: mooncake_master {master}, ports: ["50052:50051"]}}
  server:
    image: x
    command: {SERVER} --enable-hierarchical-cache --hicache-storage-backend mooncake
    environment: {{MOONCAKE_MASTER: "{address}"}}
"""
    processes = understand(read_compose(text, "compose.yaml", {}).commands, Unknown)
    found = [one.text for one in findings(processes) if one.rule.id == "service-misdirected"]
    assert found == ([f"{said} (MOONCAKE_MASTER at compose.yaml:7)"] if said else [])


def test_a_metadata_server_that_the_master_does_not_start_is_missed() -> None:
    text = f"""
services:
  master: {{image: x, command: mooncake_master}}
  server:
    image: x
    command: {SERVER} --enable-hierarchical-cache --hicache-storage-backend mooncake
    environment:
      MOONCAKE_MASTER: master:50051
      MOONCAKE_TE_META_DATA_SERVER: http://master:8080/metadata
"""
    processes = understand(read_compose(text, "compose.yaml", {}).commands, Unknown)
    (found,) = [one for one in findings(processes) if one.rule.id == "service-misdirected"]
    assert found.text.startswith(
        "metadata-http master:8080: that service listens on port 50051 or 9003"
    )
