"""The names of all environment variables that a release of SGLang or Mooncake reads."""

from collections.abc import Mapping
from functools import lru_cache

from preflight.base.program import data_file


@lru_cache(maxsize=1)
def known_variables() -> Mapping[str, str]:
    """Return every name that a release reads, with the last SGLang that does; "" for the newest."""
    path = data_file("known_environment.txt")
    with open(path, encoding="utf-8") as file:
        lines = (line.strip() for line in file if not line.startswith("#"))
        return dict(line.partition(" ")[::2] for line in lines)
