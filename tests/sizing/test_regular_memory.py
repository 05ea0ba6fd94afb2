"""The verdict is about the launch's memory, on huge pages or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.base.root import Root
from preflight.cli.sizing import run
from preflight.inputs.written_launch import read_launch, size_written
from preflight.processes.processes import LaunchOptions
from preflight.sizing.launch_sizing import LaunchSizing
from tests.builders.hosts import GIB, Host


def sized(tmp_path: Path, *words: str, **options: int) -> LaunchSizing:
    Host(memory_bytes=64 * GIB).write(tmp_path)
    root = Root(str(tmp_path))
    launch = read_launch(words, (), {}, root, is_command=True)
    return size_written(launch, LaunchOptions(**options), root)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "status"), [("400GB", "fails"), ("4GB", "fits")])
def test_a_segment_on_regular_pages_has_to_be_there(tmp_path: Path, size: str, status: str) -> None:
    found = sized(tmp_path, "mooncake_client", f"--global_segment_size={size}", "--protocol=tcp")
    assert found.status == status
    if status == "fails":
        assert "400.00 GiB needed" in found.reason
        assert found.exit_code == 2


def test_of_another_host_the_memory_is_not_known(tmp_path: Path) -> None:
    words = ("mooncake_client", "--global_segment_size=400GB", "--protocol=tcp")
    assert sized(tmp_path, *words, available_bytes=1 << 40).status == "fits"


def test_an_engine_alone_is_unknown_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "launch.sh"
    nixl = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    words = f"vllm serve Qwen/Qwen3-8B --kv-transfer-config '{nixl}'"
    script.write_text(f"mooncake_master &\n{words}\n")
    assert run([str(script)]) == 3
    assert "vllm serve Qwen/Qwen3-8B" in capsys.readouterr().out
    assert run(["--json", str(script)]) == 3
    assert "vllm serve" in json.loads(capsys.readouterr().out)["error"]
