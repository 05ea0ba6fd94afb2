"""The texts that a launch was read from, so that they can be read again with changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from preflight.launches import read_source as files
from preflight.launches.env_file import read_env_file, read_small_file
from preflight.launches.launch_source import Reading, SourceNote, Word
from preflight.launches.shell_script import read_script
from preflight.launches.variables import environment_words


class LaunchTexts(NamedTuple):
    """texts: of the launch's file and of its env files, by path, as they were read.

    path: of the launch's own. environment: the caller's. local: its host is this machine.
    """

    path: str
    texts: Mapping[str, str]
    environment: Mapping[str, str]
    local: bool = True

    def read(self, texts: Mapping[str, str]) -> Reading:
        """As ``read_source`` does, of these texts. Raises SourceError as it does."""
        variables: dict[str, Word] = environment_words(self.environment)
        notes: list[SourceNote] = []
        env_files = {path: text for path, text in texts.items() if path != self.path}
        for path, text in env_files.items():
            read, said = read_env_file(text, path, self.environment)
            variables.update(read)
            notes.extend(said)
        text = texts[self.path]
        if self._is_manifest(text):
            given = files._EnvFiles(variables, tuple(notes), env_files)
            reading = files._manifest(text, self.path, given)
        else:
            reading = read_script(text, self.path, variables)
        return reading._replace(notes=(*notes, *reading.notes))

    def beside(self, name: str) -> str | None:
        """The path of a file that the launch names; None for one of another host."""
        if name.startswith("/"):
            return name if self.local else None
        return os.path.join(os.path.dirname(self.path), name)

    def _is_manifest(self, text: str) -> bool:
        return self.path.lower().endswith(files._YAML) or files._looks_like_manifest(text)


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
    return LaunchTexts(path, texts, environment, local)
