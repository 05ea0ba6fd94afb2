"""Whether a store's metadata server is one that the launch itself starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.framework.needs import Service
from checks.framework.unknown import Unknown
from preflight.command_inputs.host_source import open_host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from preflight.launches.shell_script import read_script
from preflight.processes.ports import ports
from preflight.processes.processes import understand
from preflight.processes.services import services
from tests.builders.hosts import Host

STORE = (
    "MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_TE_META_DATA_SERVER={url} MOONCAKE_PROTOCOL=tcp "
    "MOONCAKE_GLOBAL_SEGMENT_SIZE=64mb python3 -m mooncake.mooncake_store_service {flags}\n"
)
URL = "http://127.0.0.1:8080/metadata"


def _services(folder: Path, text: str) -> dict[str, Service]:
    script = folder / "launch.sh"
    script.write_text(text)
    host = open_host(str(Host().write(folder / "host")))
    sized = size_and_needs(LaunchWords((str(script),)), host)
    assert sized is not None
    return {service.kind: service for service in sized.needs.services}


@pytest.mark.parametrize(
    ("before", "flags", "own"),
    [
        ("", "--port 8081", False),
        # Its own REST port is a web server, and no metadata server.
        ("", "--port 8080", False),
        ("mooncake_master &\n", "--port 8081", False),
        ("mooncake_master --enable_http_metadata_server=true &\n", "--port 8081", True),
        ("python3 -m mooncake.http_metadata_server --port 8080 &\n", "--port 8081", True),
    ],
)
def test_a_store_services_metadata_server_is_asked_unless_the_launch_has_one(
    tmp_path: Path, before: str, flags: str, own: bool
) -> None:
    found = _services(tmp_path, before + STORE.format(url=URL, flags=flags))["metadata-http"]
    assert (found.host, found.port, found.path, found.own) == ("127.0.0.1", 8080, "/metadata", own)
    without = _services(tmp_path, STORE.format(url="P2PHANDSHAKE", flags=""))
    assert set(without) == {"master"}


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("", ("127.0.0.1", 8080, "default of --metadata_server")),
        ("--metadata_server=http://10.0.0.7:80/metadata", ("10.0.0.7", 80, "launch.sh:1")),
        ("--metadata_server=P2PHANDSHAKE", None),
    ],
)
def test_a_client_asks_the_one_of_its_default(
    tmp_path: Path, flag: str, expected: tuple[str, int, str] | None
) -> None:
    """With nobody there it ends: "Failed to setup client: INTERNAL_ERROR" (0.3.13.post1)."""
    found = _services(tmp_path, f"mooncake_client --global_segment_size=64MB {flag}\n")
    service = found.get("metadata-http")
    assert (service is None) is (expected is None)
    if service is not None and expected is not None:
        assert (service.host, service.port) == expected[:2]
        assert service.origin.endswith(expected[2])
        assert not service.own


def test_a_router_s_worker_at_an_address_that_nobody_knows_is_a_service_that_is_not_known() -> None:
    text = (
        "python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://$P:30002 "
        "--decode http://10.0.0.2:30003\n"
    )
    processes = understand(read_script(text, "r.sh", {}).commands, lambda name: Unknown(name))
    unknown, known = services(processes)
    assert isinstance(unknown.host, Unknown)
    assert (known.kind, known.host, known.port) == ("worker", "10.0.0.2", 30003)


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("python3 -m sglang_router.launch_router", 30000),
        ("python3 -m sglang.srt.disaggregation.mini_lb", 8000),
        ("python3 -m sglang.srt.disaggregation.launch_lb --port 9001", 9001),
    ],
)
def test_a_router_of_any_kind_has_its_port(command: str, port: int) -> None:
    text = f"{command} --prefill http://10.0.0.1:30000 --decode http://10.0.0.2:30001\n"
    processes = understand(read_script(text, "r.sh", {}).commands, lambda name: Unknown(name))
    assert [one.port for process in processes for one in ports(process)] == [port]
    assert [service.host for service in services(processes)] == ["10.0.0.1", "10.0.0.2"]
