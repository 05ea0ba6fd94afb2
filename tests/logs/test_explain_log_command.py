"""``mooncake-preflight explain`` with a log: what it prints, and how it ends."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.logs.explain import LogReading, explanations_object, explanations_text
from preflight.logs.search import Bounded, read_blocks
from tests.paths import ROOT

pytestmark = pytest.mark.slow

LOGS = ROOT / "tests/data/logs"
COMMAND = [sys.executable, "-m", "preflight.cli.main", "explain"]


def explain(*arguments: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=text, capture_output=True, timeout=120, cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("hugepages-l2.log", 2),
        ("kernel-mkeys.log", 2),
        ("healthy-mooncake.log", 0),
        ("healthy-sglang.log", 0),
    ],
)
def test_a_log_from_standard_input_and_from_a_file_are_alike(log: str, code: int) -> None:
    path = LOGS / log
    piped, named = explain(text=path.read_bytes()), explain("--log", str(path))
    assert (piped.returncode, named.returncode) == (code, code)
    assert piped.stdout == named.stdout
    assert piped.stderr == b""


def test_bytes_that_are_no_text_are_no_failure() -> None:
    assert explain(text=bytes(range(256)) * 1000).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("memlock.limit", "--log", "x"),
        ("--log", "/no/such/file"),
        ("--log", "/dev/zero"),
        ("--log", "."),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    done = explain(*arguments)
    assert done.returncode == 64
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "a folder: give one log of it"),
        (Path(sys.executable).read_bytes()[:1_000_000], "a binary file, and no log"),
        (gzip.compress(b"Bus error\n"), "packed: zcat {path} | mooncake-preflight explain"),
    ],
    ids=["folder", "binary", "gzip"],
)
def test_what_is_no_text_is_named_as_such(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.mkdir() if content is None else path.write_bytes(content)
    done = explain(str(path))
    assert done.returncode == 64
    assert f"{path}: {said.format(path=path)}\n" in done.stderr.decode()


def test_a_log_with_a_hole_or_some_wrong_bytes_is_read(tmp_path: Path) -> None:
    """logrotate's copytruncate leaves NUL up to where the server writes on."""
    path = tmp_path / "server.log"
    path.write_bytes(b"one\n" + b"\0" * 5_000_000 + b"\xff\x1b[31mBus error\x1b[0m (core dumped)\n")
    assert explain(str(path)).returncode == 2


def test_what_has_no_end_is_refused_on_standard_input_too() -> None:
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(
            COMMAND, stdin=endless, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 64
    assert "standard input: a device, and no log" in done.stderr


@given(st.binary(max_size=40), st.integers(1, 50))
def test_a_log_is_read_up_to_its_bound_and_says_so(content: bytes, most: int) -> None:
    bounded = Bounded(io.BytesIO(content), most)
    read = content[:most].replace(b"\0", b"")
    assert "".join(read_blocks(bounded)) == read.decode("utf-8", "replace")
    assert bounded.cut == (len(content) > most)


def test_a_log_that_goes_on_is_said_in_both_forms() -> None:
    reading = LogReading(3, [], whole=False)
    text = explanations_text(reading, lambda text, _: text, 60)
    assert "Only the first 16 GiB of the log were read" in text
    assert max(map(len, text.splitlines())) <= 60
    assert explanations_object(reading)["whole"] is False
