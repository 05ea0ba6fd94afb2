"""A launch with a part that cannot be read never passes; ``spoiled`` tries as many as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launches.spoiled import check, passes

LAUNCHES = Path(__file__).parents[1] / "data" / "launches"
# Nothing of it fails on the made host: what keeps it from a pass is what is not read.
FITS = """\
ulimit -l unlimited
export MC_TCP_BIND_ADDRESS=127.0.0.1
PORT=30000
for i in 0 1; do echo "$i"; done
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --port $PORT
"""


def test_what_is_spoiled_passes_whole(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(FITS)
    assert check(path) in (0, 1)


@pytest.mark.slow
def test_no_spoiled_launch_passes(tmp_path: Path) -> None:
    path = tmp_path / "fits.sh"
    path.write_text(FITS)
    files = [path, *sorted(LAUNCHES.glob("*.sh"))]
    assert [text for _, text in passes(files[:1], 20, 1)] == []
    assert [text for _, text in passes(files, 25, 2)] == []
