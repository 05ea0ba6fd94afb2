"""``fit`` as users and scripts meet it: its answer, the edited launch, every way out."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.framework.root import Root
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.gpu.facts import read_gpus
from checks.host_snapshot.capture import CaptureError
from checks.host_snapshot.described import DescribedRoot, Description, known_models
from checks.rdma.device_table import device_rows
from checks.rdma.facts import read_rdma
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.fit.fit_launch import FirstLaunch
from preflight.cache_sizing.fit.launch_edit import Edited, edit_texts, launch_texts
from preflight.cache_sizing.fit.launch_values import SizeValues, knobs
from preflight.cache_sizing.fit.report import MAY_END
from preflight.cli.main import run as run_preflight
from preflight.launch_problems.rules.launch_rules import RULES
from preflight.launches.launch_files import read_source
from preflight.launches.shell_script import read_argv
from preflight.processes.processes import understand
from tests.builders.synthetic import PATIENCE_SECONDS, build_host, gpu_host, plain_host
from tests.paths import ROOT
from tests.valid import valid

Out = pytest.CaptureFixture[str]

SCHEMA = json.loads((ROOT / "preflight/report/schemas/fit-v1.schema.json").read_text())
GB = 10**9
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B"
STORE = "--enable-hierarchical-cache --hicache-storage-backend mooncake"
SCRIPT = f"""\
#!/bin/bash
export MC_STORE_USE_HUGEPAGE=1
export MOONCAKE_MASTER=127.0.0.1:50051
export MOONCAKE_GLOBAL_SEGMENT_SIZE=64gb  # of all ranks
export MC_MMAP_ARENA_POOL_SIZE=56gb
{SERVER} --tp 8 --page-size 64 \\
  {STORE} --hicache-size 30 \\
  --hicache-mem-layout page_first --hicache-io-backend kernel
"""
PATIENCE = ("--timeout", str(PATIENCE_SECONDS))
# SGLang 0.5.21 and newer hand K and V over apart, which Mooncake 0.3.14 refuses of huge pages.
VERSIONS = ("--sglang-version", "0.5.20", "--mooncake-version", "0.3.14")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> str:
    services = {("127.0.0.1", 50051): "master"}
    packages = {"sglang": "0.5.20", "mooncake_transfer_engine": "0.3.14", "torch": "2.9.1"}
    machine = replace(gpu_host(), services=services, packages=packages)
    return str(build_host(tmp_path_factory.mktemp("host"), machine))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_host(tmp_path_factory.mktemp("small"), plain_host()))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("MC_STORE_USE_HUGEPAGE", "MC_MMAP_ARENA_POOL_SIZE", "MOONCAKE_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "launch.sh").write_text(SCRIPT)
    return "launch.sh"


def answer(capsys: Out, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the object, which is as its schema has it; the answer's keys lie in it."""
    before, dashes, behind = list(words), [], []
    if "--" in words:
        at = words.index("--")
        before, dashes, behind = list(words[:at]), ["--"], list(words[at + 1 :])
    goal = () if "--goal" in before else ("--goal", "l2")
    code = run_preflight(["fit", "--json", *goal, *PATIENCE, *VERSIONS, *before, *dashes, *behind])
    found = json.loads(capsys.readouterr().out)
    valid(found, SCHEMA)
    assert found["exit_code"] == code
    return code, {**found, **(found["answer"] or {})}


@pytest.mark.slow
def test_a_script_on_a_host_of_eight_gpus(host: str, script: str, capsys: Out) -> None:
    """129 GB on each of 8 ranks, and SGLang's gate refuses 130: the arithmetic in words.

    Each rank lies on 57358 pages for L2 and 4104 for the segment and the local buffer; 8 ranks and
    10 GiB of what the gate keeps leave the pool its pages, and one GB more does not."""
    code, found = answer(capsys, script, "--host", host)
    assert code == 0
    assert found["sizes"]["l2"]["value"] == "129"
    assert found["sizes"]["segment"]["size_bytes"] is None
    assert found["sizes"]["arena"]["value"] == "8208mb"
    assert [pool["numa_node"] for pool in found["pools"]] == [0, 1]
    pages = sum(pool["pages"] for pool in found["pools"])
    free = 2 * (1024 * GIB - 1024 * GIB // 20 + 1024 * GIB // 40) - pages * 2 * MIB - 10 * GIB
    assert 129 * GB <= free // 8 < 130 * GB + 130 * GB * 2 * MIB // GIB
    (bound,) = found["bounds"]
    assert bound["value_bytes"] == 130 * GB
    assert bound["findings"][0]["check"] == "sglang.admission-gate"
    (share,) = found["per_gib"]
    assert (share["host_bytes"], share["pages"]) == (8 * GIB, 4096)
    # 40 layers, one of 8 heads on each rank, 128 numbers of K and as many of V, 2 bytes each.
    assert share["tokens"] == GIB // (40 * 128 * 2 * 2)
    (edit,) = found["edits"]
    changed = [line for line in edit["diff"].splitlines() if line[0] in "+-"]
    assert changed == [
        "--- launch.sh",
        "+++ launch.sh",
        "-export MC_MMAP_ARENA_POOL_SIZE=56gb",
        "+export MC_MMAP_ARENA_POOL_SIZE=8208mb",
        f"-  {STORE} --hicache-size 30 \\",
        f"+  {STORE} --hicache-size 129 \\",
    ]
    assert Path(script).read_text() == SCRIPT


@pytest.mark.slow
def test_the_host_passes_check_once_the_launch_is_written_and_the_plan_set(
    host: str, script: str, tmp_path: Path, capsys: Out
) -> None:
    """The command itself as the judge, on the files of the host with the pages that fit says."""
    _, found = answer(capsys, script, "--host", host, "--write")
    assert found["written"] == ["launch.sh"]
    pages = {pool["numa_node"]: pool["pages"] for pool in found["pools"]}
    machine = replace(gpu_host(), services={("127.0.0.1", 50051): "master"})
    planned = replace(machine, pools={2 * MIB: pages[0], GIB: 0})
    free = 1024 * GIB - 1024 * GIB // 20 - pages[0] * 2 * MIB
    (tmp_path / "planned").mkdir()
    root = build_host(tmp_path / "planned", replace(planned, node_free_bytes=free))
    run_preflight(["check", "--json", *PATIENCE, *VERSIONS, "--root", str(root), script])
    checked = json.loads(capsys.readouterr().out)
    wanting = {f["check"] for f in checked["findings"] if f["status"] in ("fail", "unknown")}
    assert wanting == set()
    again, same = answer(capsys, script, "--host", host)
    assert (again, same["edits"]) == (0, [])


@pytest.mark.slow
def test_write_keeps_the_mode_and_a_copy(host: str, script: str, capsys: Out) -> None:
    path = Path(script)
    path.chmod(0o751)
    answer(capsys, script, "--host", host, "--write")
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert Path("launch.sh.bak").read_text() == SCRIPT
    assert "--hicache-size 129" in path.read_text()
    assert sorted(place.name for place in path.parent.iterdir()) == ["launch.sh", "launch.sh.bak"]


@pytest.mark.slow
def test_write_keeps_a_link_and_the_mark_of_the_encoding(
    host: str, script: str, tmp_path: Path, capsys: Out
) -> None:
    real = tmp_path / "real.sh"
    real.write_bytes(b"\xef\xbb\xbf" + SCRIPT.encode())
    Path(script).unlink()
    Path(script).symlink_to(real)
    answer(capsys, script, "--host", host, "--write")
    assert Path(script).is_symlink()
    assert real.read_bytes().startswith(b"\xef\xbb\xbf#!/bin/bash")
    assert b"--hicache-size 129" in real.read_bytes()


@pytest.mark.slow
def test_nothing_is_written_where_a_value_is_to_be_changed_by_hand(
    host: str, script: str, capsys: Out
) -> None:
    """Half of the values would be neither the old launch nor the one that fits."""
    text = SCRIPT.replace("--hicache-size 30", "--hicache-size $(compute)")
    Path(script).write_text(text)
    _, found = answer(capsys, script, "--host", host, "--write")
    assert found["written"] == []
    assert [advice["name"] for advice in found["by_hand"]] == ["--hicache-size"]
    assert Path(script).read_text() == text


@pytest.mark.slow
def test_a_command_line_is_printed_with_its_new_values(host: str, script: str, capsys: Out) -> None:
    words = f"MOONCAKE_MASTER=127.0.0.1:50051 {SERVER} --tp 8 {STORE} --hicache-size 5".split()
    _, found = answer(capsys, "--host", host, "--", *words)
    value = found["sizes"]["l2"]["value"]
    assert found["command"] == " ".join([*words[:-1], value])
    assert (found["edits"], found["written"]) == ([], [])


@pytest.mark.slow
def test_a_recorded_launch_is_said_and_not_edited(
    host: str, script: str, tmp_path: Path, capsys: Out
) -> None:
    capture = str(tmp_path / "host.tar.gz")
    run_preflight(["capture", *VERSIONS, *PATIENCE, "--root", host, capture, script])
    capsys.readouterr()
    code, found = answer(capsys, "--root", capture)
    assert code == 0
    assert found["sizes"]["l2"]["value"] == "129"
    assert {advice["reason"] for advice in found["by_hand"]} == {"the launch is no file here"}


@pytest.mark.slow
def test_nothing_fits_says_why(small: str, script: str, capsys: Out) -> None:
    code, found = answer(capsys, script, "--host", small)
    assert (code, found["outcome"]) == (2, "nothing-fits")
    assert found["blocking"][0]["check"] == "hugetlb.reservation"
    words = ["fit", "--goal", "l2", *PATIENCE, *VERSIONS, "--host", small, script]
    assert run_preflight(words) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("NOTHING FITS: launch.sh on")
    assert "hugetlb.reservation" in printed
    printed = " ".join(printed.split())
    assert "Even the least sizes are more than this host has left: lower" in printed
    assert "--ignore" not in printed  # no waiver makes room


@pytest.mark.slow
def test_a_launch_that_no_size_lets_start_is_no_unknown(host: str, capsys: Out) -> None:
    """check fails for it: a value that the server refuses, so that what it maps is not known."""
    words = ["--", *SERVER.split(), *STORE.split(), "--hicache-size", "30", "--dp", "0"]
    code, found = answer(capsys, "--host", host, *words)
    assert (code, found["outcome"]) == (2, "nothing-fits")
    assert [one["check"] for one in found["blocking"]] == ["values-refused"]
    assert run_preflight(["fit", *PATIENCE, *VERSIONS, "--host", host, *words]) == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert "--dp 0: no replica is started" in printed
    assert "--ignore" not in printed  # that would not bring sizes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "is about a launch: give a script"),
        (("nowhere.sh",), "does not exist"),
        (("launch.sh", "--keep", "10"), "bytes"),
        (("launch.sh", "--goal", "l3"), "l3"),
        (("launch.sh", "--gpus", "8xH800"), "give --memory, as 2tb"),
        (("launch.sh", "--memory", "2tb", "--gpus", "8xH9000"), "H9000 is not known here"),
        (("launch.sh", "--memory", "2tb", "--gpus", "eight"), "as 8xH800"),
        (("launch.sh", "--memory", "2tb", "--nics", "0xmlx5"), "must be 1 to 64"),
        (("launch.sh", "--memory", "1gb"), "must be 4.00 GiB to"),
        (("launch.sh", "--memory", "2tb", "--root", "somewhere"), "give the one or the other"),
        (("--write", "--memory", "2tb", "--", *f"{SERVER} {STORE}".split()), "--write is for"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_rule(
    script: str, capsys: Out, words: tuple[str, ...], said: str
) -> None:
    code, found = answer(capsys, *words)
    assert (code, found["status"]) == (64, "error")
    assert said in found["reason"]


@pytest.mark.slow
def test_a_host_is_described_before_it_is_there(script: str, capsys: Out) -> None:
    described = ("--memory", "2TiB", "--gpus", "8xh800", "--nics", "8xMLX5", "--numa", "2")
    code, found = answer(capsys, script, *described)
    assert code == 0
    assert found["unknowns"] == []
    assert {pool["numa_node"] for pool in found["pools"]} == {0, 1}
    said = " ".join(found["assumptions"])
    for assumed in ("MemTotal 1.97 TiB", "idle", "memlock is unlimited", "79.65 GiB each"):
        assert assumed in said


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "nic"), [("H20", "erdma"), ("A10", "mlx5"), ("B200", "mlx5")])
def test_no_gate_is_unknown_on_a_described_host(
    gpu: str, nic: str, script: str, capsys: Out
) -> None:
    described = ("--memory", "1tb", "--gpus", f"8x{gpu}", "--nics", f"4x{nic}", "--numa", "2")
    code, found = answer(capsys, script, *described)
    assert (code, found["unknowns"]) == (0, [])


def test_every_model_that_is_known_is_there_to_be_read() -> None:
    """Each fact that a device is judged by is known."""
    for model in sorted({*known_models("gpus"), *known_models("nics")}):
        gpus, nics = (f"4x{model}", None) if model in known_models("gpus") else (None, f"4x{model}")
        root = DescribedRoot(Description("1tb", gpus, nics, "2"))
        devices: Any = read_gpus(root, None).accelerators
        found = devices if gpus else read_rdma(root, None).nics
        assert not isinstance(found, Unknown), model
        assert len(found) == 4, model
        assert any(text.startswith("4 ") for text in root.assumptions), model


@pytest.mark.slow
def test_devices_that_nobody_described_are_unknown_and_the_sizes_come_all_the_same(
    script: str, capsys: Out
) -> None:
    """Neither absent, which would be a failure, nor there, which would be a pass."""
    code, found = answer(capsys, script, "--memory", "1tb")
    devices = {f["check"]: f["status"] for f in (*found["beside"], *found["unknowns"])}
    named = {"gpu.count", "rdma.no-device", "rdma.region-too-large"}
    assert {devices.get(check) for check in named} == {"unknown"}
    assert "fail" not in {finding["status"] for finding in found["beside"]}
    assert (code, found["status"]) == (3, "unknown")
    assert found["sizes"]["l2"]["size_bytes"]
    assert run_preflight(["fit", "--goal", "l2", "--memory", "1tb", script]) == 3
    said = capsys.readouterr().out
    assert said.startswith("THE SIZES FIT, THE REST IS NOT DESCRIBED")
    assert "give --gpus, as 8xH800" in said
    assert "GPUs are not described (--gpus)" in said


@pytest.mark.slow
def test_what_is_described_and_too_little_fails_as_ever(script: str, capsys: Out) -> None:
    code, found = answer(capsys, script, "--memory", "1tb", "--gpus", "1xH800")
    failed = {f["check"] for f in found["beside"] if f["status"] == "fail"}
    assert failed == {"gpu.count"}
    assert "rdma.no-device" in {f["check"] for f in found["beside"] if f["status"] == "unknown"}
    assert (code, found["outcome"]) == (1, "fits-but-fails")


@pytest.mark.parametrize(
    ("gpus", "mib"),
    [("8xH200", 143771), ("8xrtx pro 6000", 97887), ("4xMI300X", 196592), ("2x288gb", 294912)],
)
def test_the_memory_of_a_gpu_is_what_its_driver_tells(gpus: str, mib: int) -> None:
    """141 GB of the data sheet are 140.4 GiB; what is given as a size is taken as it is."""
    assert DescribedRoot(Description("1tb", gpus)).gpu_bytes == mib * MIB


@pytest.mark.parametrize("gpus", ["8xH900", "8x12qq", "8x80", "8x1mb"])
def test_a_gpu_that_is_not_known_is_refused_with_those_that_are(gpus: str) -> None:
    with pytest.raises(
        CaptureError, match=r"known are H800, .*of others give the memory, as 8x288gb"
    ):
        DescribedRoot(Description("1tb", gpus))


def test_nics_of_every_family_on_pci_can_be_described() -> None:
    soft = {"rxe", "siw", "ipathverbs"}  # made by the host itself; no longer made
    known = {str(row["provider"]) for row in known_models("nics").values()}
    assert {row.provider for row in device_rows()} - soft <= known


@pytest.mark.slow
def test_no_fits_stands_above_a_rule_that_the_server_may_end(tmp_path: Path, capsys: Out) -> None:
    launch = tmp_path / "launch.sh"
    launch.write_text(SCRIPT)
    words = "fit --goal l2 --memory 2tb --gpus 8xH100 --nics 8xmlx5 --numa 2".split()
    run_preflight([*words, str(launch)])
    assert capsys.readouterr().out.startswith("THE SIZES FIT, AND THE SERVER MAY END ALL THE SAME")
    run_preflight([*words, "--mooncake-version", "0.3.13.post1", str(launch)])
    assert capsys.readouterr().out.startswith("FITS: ")


def test_every_rule_by_which_a_server_may_end_is_one_that_the_verdict_knows() -> None:
    may = {id_ for id_, rule in RULES.items() if "-may-" in id_ and "ends" in rule.page.follows}
    assert may == MAY_END


# The first launch ------------------------------------------------------------------------------

FIRST = "fit --model Qwen/Qwen3-32B --memory 2tb --gpus 8xH100 --nics 8xmlx5 --numa 2".split()


@pytest.mark.slow
def test_a_first_launch_is_written_and_fits_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    # A workload that is replayed in little time.
    few = "--clients 20 --rounds 2 --request-length 1024".split()
    assert run_preflight([*FIRST, *few, "--write", "first.sh"]) == 0
    assert "written: first.sh" in capsys.readouterr().out
    text = Path("first.sh").read_text()
    assert os.access("first.sh", os.X_OK)
    for part in ("--tp 8", "mlx5_0,mlx5_1", "MOONCAKE_PROTOCOL=rdma"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100
    assert "MC_FORCE_TCP" not in text
    again = [*FIRST[:1], *FIRST[3:], *few, "--json", "first.sh"]
    assert run_preflight(again) == 0
    found = json.loads(capsys.readouterr().out)["answer"]
    assert found["sizes"]["l2"]["now"] == found["sizes"]["l2"]["value"]
    assert found["sizes"]["segment"]["now"] == found["sizes"]["segment"]["value"]
    assert found["edits"] == []


@pytest.mark.slow
def test_a_first_launch_without_write_is_printed(capsys: Out) -> None:
    assert run_preflight([*FIRST, "--goal", "l2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("FITS: a first launch of Qwen/Qwen3-32B")
    assert "\n#!/bin/bash\n" in said
    assert "MOONCAKE_GLOBAL_SEGMENT_SIZE=536870912" in said
    without_nics = [word for word in FIRST if word not in ("--nics", "8xmlx5")]
    assert run_preflight([*without_nics, "--goal", "l2"]) == 0
    said = capsys.readouterr().out
    assert "MOONCAKE_PROTOCOL=tcp\n" in said
    assert "whatever the sizes" not in said  # what this program writes, it does not warn of
    assert run_preflight([*FIRST, "--goal", "l2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    valid(found, SCHEMA)
    assert found["answer"]["command"].startswith("#!/bin/bash\n")


@pytest.mark.slow
def test_a_first_launch_of_a_host_that_is_there(capsys: Out) -> None:
    """As many ranks as it has GPUs, and its own NICs; what its memlock has to be is said."""
    words = ["fit", "--goal", "l2", "--model", "Qwen/Qwen3-32B", "--root", "demo:h800"]
    assert run_preflight(words) == 1
    said = capsys.readouterr().out
    assert said.startswith("FITS ONCE IT IS SET")
    assert "prlimit --pid $$ --memlock=unlimited:unlimited" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "m", "--memory", "1tb"], "how many GPUs there are is not known"),
        (["--model", "m", "a", "b"], "give the file for it, and no command"),
        (["--model", "m", "--write"], "give the file to write"),
        (["--model", "m", __file__], "is there: leave out --model"),
    ],
)
def test_what_a_first_launch_cannot_be_made_of(words: list[str], said: str, capsys: Out) -> None:
    assert run_preflight(["fit", *words]) == 64
    assert said in capsys.readouterr().err


def test_the_name_of_a_model_is_one_word_of_the_script() -> None:
    first = FirstLaunch("a b;c\nd", 1, "here", ())
    reading = read_argv(first.words(), {})
    words = [word.text for command in reading.commands for word in command.words]
    assert words[words.index("--model-path") + 1] == "a b;c\nd"


SETS = SizeValues(129 * GB, 700 * GIB, 8 * GIB)
GONE = SizeValues(129 * GB, 700 * GIB + MIB, 0)
# Each is edited to the file of its name in ``after``.
EDITS = ROOT / "tests" / "data" / "edits"
GONE_FILES = ("plain-number.yaml", "lists.yaml", "pod.yaml", "exports.sh", "docker.sh")
FORMS = {
    **dict.fromkeys(GONE_FILES, GONE),
    **dict.fromkeys(("compose.yaml", "json.sh"), SETS),
    **dict.fromkeys(("variables.sh", "two.sh"), SizeValues(129 * GB, 700 * GIB)),
    **dict.fromkeys(("ratio.sh", "windows.sh"), SizeValues(129 * GB)),
    "service.sh": SizeValues(None, 700 * GIB),
}


def edit(path: Path, values: SizeValues, *env_files: str) -> Edited:
    texts = launch_texts(str(path), env_files, {})
    assert texts is not None
    reading = texts.read(texts.texts)

    def read_file(name: str) -> str | Unknown:
        return Root(str(path.parent)).text(f"/{name}")

    return edit_texts(texts, knobs(reading, understand(reading.commands, read_file)), values)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_the_users_own_file_is_edited_token_by_token(name: str, tmp_path: Path) -> None:
    """In each way of writing a launch: what is said stands there, all other lines stay."""
    values, path = FORMS[name], tmp_path / name
    path.write_bytes((EDITS / name).read_bytes())
    found = edit(path, values)
    assert found.advice == ()
    (changed,) = found.edits
    assert changed.after.encode() == (EDITS / "after" / name).read_bytes()
    path.write_bytes(changed.after.encode())
    assert edit(path, values).edits == ()  # nothing is left to edit


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"MOONCAKE_MASTER=a:1 {SERVER} {STORE} --hicache-size $(free)\n", "computed"),
        (f"S=`free`\nMOONCAKE_MASTER=a:1 {SERVER} {STORE} --hicache-size $S\n", "computed"),
        (f"MOONCAKE_MASTER=a:1 {SERVER} {STORE} --hicache-size $NOBODY\n", "computed"),
        (f"N=8\nMOONCAKE_MASTER=a:1 {SERVER} {STORE} --tp $N --hicache-size $N\n", "else as well"),
        (f"N=8\nMOONCAKE_MASTER=a:1 {SERVER} {STORE} --hicache-size ${{N}}0\n", "put together"),
    ],
)
def test_what_cannot_be_edited_for_certain_is_said(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(text)
    found = edit(path, SizeValues(129 * GB))
    assert found.edits == ()
    (advice,) = found.advice
    assert (advice.name, advice.text) == ("--hicache-size", "129")
    assert why in advice.why


def test_env_files_are_read_again_in_the_order_in_which_they_were_given(tmp_path: Path) -> None:
    """The later over the earlier, also where one is given twice."""
    path, first, second = (tmp_path / name for name in ("launch.sh", "first.env", "second.env"))
    path.write_text(f"{SERVER} {STORE}\n")
    first.write_text("MOONCAKE_GLOBAL_SEGMENT_SIZE=1gb\n")
    second.write_text("MOONCAKE_GLOBAL_SEGMENT_SIZE=2gb\n")
    given = (str(first), str(second), str(first))
    texts = launch_texts(str(path), given, {})
    assert texts is not None
    reading = texts.read(texts.texts)
    assert reading == read_source(str(path), {}, given)
    assert reading.commands[0].environment["MOONCAKE_GLOBAL_SEGMENT_SIZE"].text == "1gb"


@pytest.mark.parametrize("old", ['"4gb"', "4294967296"])
def test_a_value_of_a_configuration_is_edited_there(old: str, tmp_path: Path) -> None:
    path, config = tmp_path / "launch.sh", tmp_path / "mooncake.json"
    path.write_text(
        f"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH=mooncake.json {SERVER} {STORE} --hicache-size 30\n"
    )
    text = f'{{\n  "master_server_address": "a:1",\n  "global_segment_size": {old}\n}}\n'
    config.write_text(text)
    found = edit(path, SizeValues(None, 700 * GIB))
    (changed,) = found.edits
    assert Path(changed.path) == config
    assert changed.after == text.replace(old, '"700gb"')


def test_a_value_of_the_callers_environment_is_said(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"{SERVER} {STORE} --hicache-size 30\n")
    texts = launch_texts(
        str(path), (), {"MOONCAKE_MASTER": "a:1", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "4gb"}
    )
    assert texts is not None
    reading = texts.read(texts.texts)
    sizes = knobs(reading, understand(reading.commands, Unknown))
    found = edit_texts(texts, sizes, SizeValues(None, 700 * GIB))
    assert found.edits == ()
    assert found.advice[0].where == "environment"
    assert "environment of the caller" in found.advice[0].why


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    from preflight.cache_sizing.fit.fit_launch import write_edits

    path = tmp_path / "launch.sh"
    path.write_text(SCRIPT)
    found = edit(path, SizeValues(129 * GB))
    path.write_text("# somebody else's\n")
    with pytest.raises(UsageError, match="changed since it was read"):
        write_edits(found.edits)
    assert path.read_text() == "# somebody else's\n"


@pytest.mark.slow
def test_the_command_line_is_declared_without_the_heavy_parts() -> None:
    """``--help`` of any command imports what declares fit, and nothing that solves."""
    code = (
        "import sys, preflight.cli.fit\n"
        "assert not {m for m in sys.modules if m.startswith('preflight.cache_sizing.fit.solver')}\n"
        "assert 'preflight.needs.launch_sizing' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_launch_without_l2_is_asked_for_its_segment(capsys: Out) -> None:
    """Where nobody says what gets the memory: a store has nothing but its segment."""
    words = ("mooncake_client", "--global_segment_size=4GB", "--protocol=tcp")
    code = run_preflight(["fit", "--root", "demo:h800", *PATIENCE, "--", *words])
    out = capsys.readouterr().out
    assert code in (0, 1, 3)
    assert "the largest segment" in " ".join(out.split())
    assert "--global_segment_size" in out
