"""A long launch takes as much longer as it is longer; what is no launch any more is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.command_inputs.host_source import open_host
from preflight.command_inputs.launch_words import LaunchWords
from preflight.command_inputs.reading.answer import reading_text
from preflight.command_inputs.reading.understood import read_whole
from tests.builders.launched import written
from tests.builders.steps import steps

SERVER = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --enable-hierarchical-cache "
    "--hicache-size 20 --hicache-storage-backend mooncake --port"
)
SHAPES = {
    "beside each other": f"{SERVER} %d &\n",
    "one after another": f"{SERVER} 30000 --page-size %d\n",
    "on hosts of their own": f"ssh 10.0.%d.1 {SERVER} 30000\n",
    "with variables": f"export MC_A%d=1 A%d=b MOONCAKE_MASTER=h:1; {SERVER} %d &\n",
    "containers": f"docker run -d --name s%d lmsysorg/sglang:v0.5.9 {SERVER} %d\n",
    "programs that are not known": "run%d --port %d &\n",
    "Redis": "redis-server --port %d &\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("piece", SHAPES.values(), ids=SHAPES)
def test_to_understand_takes_as_much_longer_as_the_launch_is_longer(
    piece: str, tmp_path: Path
) -> None:
    small, large = (work(piece, number, tmp_path) for number in (20, 40))
    assert large <= 2.4 * small + 10_000


def work(piece: str, number: int, folder: Path) -> int:
    """Return how many lines of code ``read`` runs for so many processes."""
    path = folder / f"launch{number}.sh"
    path.write_text("".join(piece.replace("%d", str(index + 100)) for index in range(number)))
    (folder / "proc").mkdir(exist_ok=True)
    host = open_host(str(folder))

    def read() -> None:
        found = read_whole(LaunchWords((str(path),)), host)
        assert len(found.processes) == number
        reading_text(found, lambda text, color: text, 100, 0)

    read()  # what is imported or looked up once
    return steps(read)


TOO_LONG = {
    "programs": ("x\n" * 10_001, "starts more than 10000 programs"),
    "turns": (
        "for i in {1..900}; do x; x; x; x; x; x; x; x; x; x; x; x; done",
        "starts more than 10000 programs",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "says"), TOO_LONG.values(), ids=TOO_LONG)
def test_what_is_too_long_to_be_a_launch_is_refused(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is too much, how much is read, and what to give instead."""
    path = written(tmp_path, text)
    assert run(["read", "--timeout", "100", str(path)]) == 64
    said = capsys.readouterr().err
    assert says in said
    assert str(path) in said
    assert "give the part that starts the servers alone" in said


@pytest.mark.slow
def test_what_is_long_and_a_launch_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f"{SERVER} 30000 &\n" + "A=1\n" * 10_000 + "mkdir a\n" * 2_000)
    assert run(["read", "--timeout", "100", str(path)]) in (0, 3)
    assert "1 SGLang server" in " ".join(capsys.readouterr().out.split())
