"""Dynamo's SGLang worker is the SGLang server that it starts, without Dynamo's own flags."""

from __future__ import annotations

from pathlib import Path

from checks.base.units import GIB
from preflight.processes.services import ports
from tests.processes.test_unread import sized

SERVER = (
    "--model-path Qwen/Qwen3-8B --tp 2 --page-size 64 --enable-hierarchical-cache "
    "--hicache-size 10 --disaggregation-mode prefill"
)


def test_its_pools_are_those_of_the_server(tmp_path: Path) -> None:
    words = f"python3 -m dynamo.sglang --namespace a --endpoint dyn://a.b.c {SERVER} --fpm-trace"
    found = sized(tmp_path, f"{words} --dyn-reasoning-parser qwen3\n")
    (process,) = found.inputs.processes
    assert process.server is not None
    assert (process.server.arguments.error, found.unread) == (None, ())
    assert process.server.arguments.unrecognized == ()
    assert found.shown is not None
    pools = [sum(one.process.host_pools_bytes) for one in found.shown.asked]
    assert len(pools) == 2
    assert min(pools) > 9 * GIB


def test_its_ports_are_drawn_unless_they_are_given(tmp_path: Path) -> None:
    def bound(more: str) -> list[object]:
        (process,) = sized(tmp_path, f"python3 -m dynamo.sglang {SERVER} {more}\n").inputs.processes
        return [port.port for port in ports(process)]

    assert bound("--port 1234") == []
    assert bound("--disaggregation-bootstrap-port 9001") == [9001]


def test_a_configuration_file_behind_an_equals_sign_reaches_nobody(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tp: 8\n")
    found = sized(tmp_path, f"python3 -m dynamo.sglang {SERVER} --config=c.yaml\n")
    (process,) = found.inputs.processes
    assert process.server is not None
    assert process.server.value("tp_size") == 2


def test_arguments_in_a_file_of_dynamos_own_are_unknown_by_name(tmp_path: Path) -> None:
    words = f"python3 -m dynamo.sglang {SERVER} --disagg-config f"
    found = sized(tmp_path, f"{words} --disagg-config-key k\n")
    assert found.status == "unknown"
    assert "which of SGLang's arguments stand in --disagg-config" in found.reason
    assert not sized(tmp_path, f"{words}\n").unread
