"""A launch that was read elsewhere: the same answer as its text gives, and what stays behind."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from preflight.base.usage_error import UsageError
from preflight.cli.main import run
from preflight.command_inputs.host_source import launch_of, open_host, recorded_launch
from preflight.command_inputs.launch_words import LaunchWords
from tests.builders.examples import some
from tests.builders.synthetic import build_host, gpu_host
from tests.paths import ROOT

Json = dict[str, Any]

OPEN = """\
source ./env.sh
secret-tool hunter2 # made by jane
export MOONCAKE_LOCAL_HOSTNAME=$(hostname) MC_GID_INDEX=$GID PASSED=over
export MOONCAKE_MASTER=$(hostname -I | cut -d' ' -f1):50051
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp $(nvidia-smi -L | wc -l) \\
  --enable-hierarchical-cache --hicache-size 32 --hicache-storage-backend mooncake \\
  --port ${PORT:-30000} "$@"
"""
LAUNCHES = [
    *(ROOT / "docs/examples" / f"kubernetes-{name}.yaml" for name in ("entrypoint", "init")),
    *sorted(
        path for end in ("sh", "yaml") for path in (ROOT / "tests/data/launches").glob(f"*.{end}")
    ),
]


def record_of(*words: str) -> bytes:
    found = recorded_launch(LaunchWords(words))
    assert found is not None
    return found


def checked(path: Path, capsys: pytest.CaptureFixture[str]) -> Json:
    """What check prints of a launch on the made host, without where the launch lies."""
    capsys.readouterr()
    run(["check", "--json", "--root", "demo:h800", str(path)])
    printed = capsys.readouterr().out.replace(f"{path.parent}/", "")
    report: Json = json.loads(printed)
    del report["answer"]["machine"]["read_unix_seconds"]
    for finding in report["findings"]:  # the line to type has the launch's own file in it
        del finding["actions"]
        if finding["check"] in ("launch.misread", "launch.not-read"):  # a record says what it is
            del finding["text"]
    return report


@pytest.mark.slow
@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.stem)
def test_the_record_gives_the_answer_of_the_text(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the sentence of why a file is not there."""
    (tmp_path / "launch.json").write_bytes(record_of(str(path)))
    of_text, of_record = checked(path, capsys), checked(tmp_path / "launch.json", capsys)
    gone = r"(\[\w+\]: )(No such file or directory|not beside the launch)"
    assert json.loads(re.sub(gone, r"\1", json.dumps(of_record))) == (
        json.loads(re.sub(gone, r"\1", json.dumps(of_text)))
    )


def test_what_a_record_leaves_open_is_the_hosts_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not this machine's: neither its variables nor its name go along."""
    (tmp_path / "launch.sh").write_text(OPEN)
    (tmp_path / "env.sh").write_text("export MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb\n")
    monkeypatch.setenv("GID", "7")
    monkeypatch.setenv("MC_MTU", "1024")
    record = record_of(str(tmp_path / "launch.sh"))
    for here in (os.uname().nodename, "hunter2", "jane", "PASSED", "MC_MTU", str(tmp_path)):
        assert here not in record.decode()
    (tmp_path / "launch.json").write_bytes(record)
    monkeypatch.setenv("GID", "3")
    tree = build_host(tmp_path / "node", gpu_host())
    (tree / "proc/sys/kernel").mkdir(parents=True, exist_ok=True)
    (tree / "proc/sys/kernel/hostname").write_text("gpu7\n")
    found = launch_of(LaunchWords((str(tmp_path / "launch.json"),)), open_host(str(tree)))
    assert found is not None
    (command,) = found[0].reading.commands
    on_node = {name: word.text for name, word in command.environment.items()}
    assert on_node["MC_GID_INDEX"] == "3"
    assert on_node["MC_MTU"] == "1024"
    assert on_node["MOONCAKE_LOCAL_HOSTNAME"] == "gpu7"
    assert on_node["MOONCAKE_GLOBAL_SEGMENT_SIZE"] == "4gb"
    assert command.environment["MOONCAKE_MASTER"].unresolved == ("$(...)",)
    assert [word.text for word in command.words][-3:] == ["--port", "30000", "$@"]


ENGINES = {
    "lmcache": (
        "export MYPASS=hunter2 LMCACHE_CONFIG_FILE=lm.yaml\n"
        "secret-tool hunter2\n"
        "vllm serve Qwen/Qwen3-14B -tp 8 --nope hunter2 "
        """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'\n"""
    ),
    "vllm": "vllm serve --config v.yaml\n",
    "lmcache-server": (
        "lmcache server --l1-size-gb 60 --eviction-policy LRU --l2-adapter '{"
        """"type": "mooncake_store", "local_hostname": "a", "metadata_server": "P2PHANDSHAKE", """
        """"protocol": "rdma", "master_server_addr": "10.0.0.1:50051"}'\n"""
    ),
    "others": (
        "trtllm-serve Qwen/Qwen3-14B --tp_size 4 --extra_llm_api_options t.yaml\n"
        "python3 -m dynamo.sglang --model-path Qwen/Qwen3-14B --enable-hierarchical-cache\n"
        "python3 train.py --hf-checkpoint Qwen/Qwen3-14B --sglang-enable-hierarchical-cache "
        "--sglang-hicache-size 30\n"
        "python3 -m sglang_router.launch_router --worker-urls http://$H:$((P + 1)) http://:9\n"
    ),
}
BESIDE_ENGINES = {
    "lm.yaml": (
        "# hunter2\nmax_local_cpu_size: 60\nlocal_cpu_use_hugepages: true\nmine: hunter2\n"
        "extra_config:\n  first_rank_max_local_cpu_size: 90\n  api_key: hunter2\n"
    ),
    "v.yaml": "model: Qwen/Qwen3-14B\ntensor-parallel-size: 4\ncpu-offload-gb: 4\npw: hunter2\n",
    "t.yaml": "kv_cache_config:\n  host_cache_size: 100000000000\n  mine: hunter2\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_of_engines_too_goes_along_what_was_understood(name: str, tmp_path: Path) -> None:
    """With their files; nothing of it is the launch's text."""
    place = tmp_path / "launch.sh"
    place.write_text(ENGINES[name])
    for file, text in BESIDE_ENGINES.items():
        (tmp_path / file).write_text(text)
    assert b"hunter2" not in record_of(str(place))


def test_a_record_is_what_read_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "launch.sh").write_text(OPEN)
    assert run(["read", "--record", str(tmp_path / "launch.sh")]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == json.loads(record_of(str(tmp_path / "launch.sh")))
    assert run(["read", "--record"]) == 64


def test_a_record_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused in a sentence, whatever it is."""
    place = tmp_path / "launch.json"
    start = '{"schema": "mooncake-preflight/launch-record/v1"'
    for more in ("", ', "reading": {}}', ', "a": ' + "[" * 100_000, ', "reading": {"Reading": 1}}'):
        place.write_text(start + more)
        assert run(["check", "--root", "demo:h800", str(place)]) == 64
        assert "launch.json" in capsys.readouterr().err


WRONG: tuple[Any, ...] = ("x", 7, -1, None, [], {}, True, 1.5, ["x"], {"a": 1}, 10**30)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every part of plain data."""
    listed = enumerate(value) if isinstance(value, list) else ()
    for key, part in value.items() if isinstance(value, dict) else listed:
        yield (*place, key)
        yield from _places(part, (*place, key))


@pytest.mark.parametrize("name", ["a10-l1-l2-mooncake.sh", "sglang.service", "compose-store.yaml"])
def test_a_record_with_a_value_of_another_type_is_refused_or_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_of(str(ROOT / "tests/data/launches" / name))
    spoiled = list(product(_places(json.loads(record)), WRONG))
    refused = 0
    for place, wrong in some(spoiled, 43):
        document = part = json.loads(record)
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = wrong
        (tmp_path / "launch.json").write_text(json.dumps(document))
        code = run(["check", "--root", "demo:h800", str(tmp_path / "launch.json")])
        error = capsys.readouterr().err
        assert code in (0, 1, 2, 3, 64), (place, wrong, error)
        refused += code == 64
    assert refused > 20


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (LaunchWords(("/nowhere.sh",)), "does not exist"),
        (LaunchWords(sglang_version="0.5.23"), "--sglang-version is about a launch"),
    ],
)
def test_a_mistake_is_told_where_it_is_typed(launch: LaunchWords, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        recorded_launch(launch)
