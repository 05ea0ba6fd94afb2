"""The texts that a launch was read from, so that they can be read again with changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from preflight.launches.env_files import read_small_file
from preflight.launches.launch_files import read_text
from preflight.launches.source import Reading


class LaunchTexts(NamedTuple):
    """texts: of the launch's file and of its env files, by path, as they were read.

    path: of the launch's own. env_files: as they were given. environment: the caller's. local: its
    host is this machine.
    """

    path: str
    texts: Mapping[str, str]
    env_files: tuple[str, ...]
    environment: Mapping[str, str]
    local: bool = True

    def read(self, texts: Mapping[str, str]) -> Reading:
        """As ``read_source`` does, of these texts. Raises SourceError as it does."""
        env_texts = [(name, texts[name]) for name in self.env_files]
        return read_text(texts[self.path], self.path, self.environment, env_texts)

    def beside(self, name: str) -> str | None:
        """The path of a file that the launch names; None for one of another host."""
        if name.startswith("/"):
            return name if self.local else None
        return os.path.join(os.path.dirname(self.path), name)


def launch_texts(
    path: str, env_files: tuple[str, ...], environment: Mapping[str, str], local: bool = True
) -> LaunchTexts | None:
    """The texts of the file ``path``; None for what is no file that was read."""
    texts: dict[str, str] = {}
    for name in (path, *env_files):
        if not os.path.isfile(name):
            return None
        text = read_small_file(name)
        if text is None or "\ufffd" in text:
            return None
        texts[name] = text.removeprefix("\ufeff")
    return LaunchTexts(path, texts, env_files, environment, local)
