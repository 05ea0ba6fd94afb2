"""The file of ``--hicache-storage-backend-extra-config @FILE``: what is read and refused."""

from __future__ import annotations

import pytest

from checks.base.unknown import Unknown
from preflight.programs.sglang_arguments import SettingValue
from preflight.programs.store_config import read_extra_config

ABSENT = Unknown("not here", absent=True)
FILES = dict.fromkeys(("a.json", "a.yaml", "a.TOML", "a.txt", "json"), "{}")


@pytest.mark.parametrize(
    ("name", "config", "refused"),
    [
        ("a.json", {}, ""),
        ("b.txt", "not here", ""),  # unknown before it is anything else
        ("a.yaml", "not read", ""),
        ("a.TOML", "not read", ""),
        ("a.txt", {}, "Unsupported config file"),
        ("json", {}, "Unsupported config file"),  # a name without a suffix
    ],
)
def test_a_file_of_the_extra_config(name: str, config: object, refused: str) -> None:
    parsed, message = read_extra_config(
        SettingValue(f"@{name}", "a.sh:1"), lambda path: FILES.get(path, ABSENT)
    )
    if isinstance(config, str):
        assert isinstance(parsed, Unknown)
        assert config in parsed.reason
    else:
        assert parsed == config
    assert refused in (message or "")
    assert bool(message) is bool(refused)
