"""``read`` says what a launch starts, from the records that check judges, and what was not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight.cli.main import run
from preflight.command_inputs.reading.understood import uses_no_hicache_or_mooncake
from tests.builders.launch_text import SERVER as PLAIN
from tests.builders.launch_text import understood
from tests.builders.launched import written
from tests.paths import ROOT
from tests.valid import valid

Out = pytest.CaptureFixture[str]

SCHEMA = json.loads((ROOT / "preflight/report/schemas/launch-v1.schema.json").read_text())
SERVER = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --api-key hush "
    "--enable-hierarchical-cache --hicache-size 20 --hicache-storage-backend mooncake"
)
LAUNCH = f"""\
export MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_PROTOCOL=tcp
mooncake_master &
mooncake_client --global_segment_size=80GB --protocol=tcp &
for i in 0 1; do
  {SERVER} --port $((30000 + i)) &
done
"""


@pytest.fixture
def read(tmp_path: Path, capsys: Out) -> Callable[..., tuple[int, str]]:
    def reads(text: str, *words: str, name: str = "launch.sh") -> tuple[int, str]:
        path = written(tmp_path, text, name)
        (tmp_path / "host" / "proc").mkdir(parents=True, exist_ok=True)
        code = run(["read", "--root", str(tmp_path / "host"), *words, str(path)])
        return code, capsys.readouterr().out

    return reads


def answer(said: tuple[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said[1])
    valid(found, SCHEMA)
    assert found["exit_code"] == said[0]
    found |= found["answer"]
    return found


def test_each_process_is_a_line_and_the_first_says_all(
    read: Callable[..., Any], tmp_path: Path
) -> None:
    """A process stands under the path that was given, as in the findings of check."""
    code, text = read(LAUNCH)
    assert code == 0
    said = " ".join(text.split())
    assert (
        "1 mooncake_master, 1 mooncake_client (80.00 GiB), "
        "2 SGLang servers (Qwen3-14B, tp 2, HiCache on Mooncake)"
    ) in said
    assert (
        f"2 x SGLang server ({tmp_path}/launch.sh:5): model_path Qwen/Qwen3-14B, tp_size 2" in said
    )
    assert "HTTP port 30000 to 30001" in said


def test_ports_of_one_line_are_all_said(read: Callable[..., Any]) -> None:
    _, text = read("for p in 30000 30002 30010; do sglang serve --model-path m --port $p & done\n")
    assert "HTTP port 30000, 30002, 30010" in " ".join(text.split())


def test_json_has_every_setting_with_its_origin(read: Callable[..., Any]) -> None:
    found = answer(read(LAUNCH, "--json"))
    assert [p["program"] for p in found["processes"]] == [
        "mooncake_master",
        "mooncake_client",
        "sglang",
        "sglang",
    ]
    server = found["processes"][-1]
    assert server["place"]["line"] == 5
    assert server["settings"]["tp_size"]["value"] == 2
    assert server["settings"]["tp_size"]["origin"].endswith("launch.sh:5")
    assert server["settings"]["HTTP port"]["value"] == 30001
    assert server["settings"]["store.protocol"]["value"] == "tcp"
    assert server["environment"]["MOONCAKE_MASTER"]["origin"].endswith("launch.sh:1")
    assert "page_size" not in server["settings"]
    assert "hush" not in json.dumps(found)
    server = answer(read(LAUNCH, "--json", "-vv"))["processes"][-1]
    assert server["settings"]["page_size"]["origin"].startswith("default of SGLang")
    assert "absent" not in json.dumps(server["settings"])
    assert found["unread"] == []


def test_what_is_not_read_is_named_and_the_exit_code_says_so(read: Callable[..., Any]) -> None:
    text = 'mooncake_master &\nif [ "$ROLE" = a ]; then ARGS="--tp 4"; fi\n' + (
        "source /etc/site.sh\nfor h in $HOSTS; do mooncake_client --port 1; done\n"
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 8 --kv-transfer-config "
        '\'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}\'\n'
    )
    found = answer(read(text, "--json"))
    assert found["exit_code"] == 3
    said = [(each["what"], each["origin"].rpartition(":")[2]) for each in found["unread"]]
    assert said == [("vllm serve Qwen/Qwen3-8B", "5"), ("source-not-read", "3"), ("condition", "4")]
    client = found["processes"][1]
    assert client["program"] == "mooncake_client"
    assert "how many times it runs is not known" in client["count"]["unknown"]
    engine = found["processes"][2]
    assert engine["settings"]["tensor_parallel_size"]["value"] == "8"
    assert engine["settings"]["model"]["value"] == "Qwen/Qwen3-8B"


def test_pods_and_services_are_groups(read: Callable[..., Any]) -> None:
    compose = (
        "services:\n  master:\n    image: lmsysorg/sglang:v0.5.9\n    command: mooncake_master\n"
        "  server:\n    image: lmsysorg/sglang:v0.5.9\n"
        "    command: python3 -m sglang.launch_server --model-path m\n"
    )
    found = answer(read(compose, "--json", name="compose.yml"))
    assert [p["group"] for p in found["processes"]] == ["service master", "service server"]
    assert found["processes"][0]["image"] == "lmsysorg/sglang:v0.5.9"


def test_without_a_launch_it_asks_for_one(capsys: Out) -> None:
    assert run(["read", "--json"]) == 64
    valid(json.loads(capsys.readouterr().out), SCHEMA)


@pytest.mark.parametrize(
    ("line", "neither"),
    [
        ("", True),
        (" --enable-hierarchical-cache", False),
        (" --disaggregation-mode prefill", False),
        (" --elastic-ep-backend mooncake", False),
        (" --config missing.yaml", False),
    ],
)
def test_a_launch_that_uses_neither_hicache_nor_mooncake_is_known(line: str, neither: bool) -> None:
    assert uses_no_hicache_or_mooncake(understood(f"{PLAIN}{line}")) is neither
    assert not uses_no_hicache_or_mooncake(understood(f"{PLAIN}{line}", "mooncake_master"))
    assert not uses_no_hicache_or_mooncake(understood("vllm serve Qwen/Qwen3-14B"))
    assert not uses_no_hicache_or_mooncake(())


def test_a_key_that_is_left_open_is_told_as_such(read: Callable[..., Any]) -> None:
    _, said = read(f"{PLAIN} --api-key $K --admin-api-key hush\n", "-v")
    said = " ".join(said.split())
    assert "api_key = not known (K is not set where" in said
    assert "admin_api_key = (removed) (--admin-api-key at" in said


def test_a_file_named_by_the_folder_of_the_script_is_that_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    """$(dirname "$0") is the folder as the script was called."""
    monkeypatch.chdir(tmp_path)
    for folder, size in (("d", "40gb"), ("d/d", "10gb")):
        Path(folder).mkdir()
        Path(folder, "s.json").write_text(
            json.dumps(
                {
                    "local_hostname": "h",
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": "h:1",
                    "global_segment_size": size,
                }
            )
        )
        Path(folder, "env.sh").write_text(f"SIZE={size}\n")
    Path("d/launch.sh").write_text(
        'D="$(dirname "$0")"\nsource "$D/env.sh"\n'
        "python3 -m mooncake.mooncake_store_service --config=$D/s.json --port=8081\n"
        "mooncake_client --global_segment_size=$SIZE\n"
    )
    run(["read", "d/launch.sh"])
    said = capsys.readouterr().out
    assert "1 Mooncake store service (40.00 GiB), 1 mooncake_client (40.00 GiB)" in " ".join(
        said.split()
    )


def test_of_several_ways_all_values_are_said(read: Callable[..., Any]) -> None:
    _, said = read(f'if [ "$R" = a ]; then T=2; else T=4; fi\n{PLAIN} --tp $T\n')
    assert "2 or 4" in " ".join(said.split())
    assert "R is not set; read each way" in " ".join(said.split())
