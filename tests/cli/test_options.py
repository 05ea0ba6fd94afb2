"""Numbers and sizes that no one can mean are usage errors, under the option's own name."""

from __future__ import annotations

import pytest

from preflight.cli.main import run

LAUNCH = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B".split()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--gpu-memory", "0gb"), ("--gpu-memory", "0"), ("--timeout", "nan"), ("--timeout", "inf")],
)
def test_what_nobody_can_mean_is_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A memory of 0 was divided by, and a defect opens the gate of ``exec``."""
    assert run(["check", option, value, "--", *LAUNCH]) == 64
    said = capsys.readouterr().err
    assert option in said
    assert value in said
