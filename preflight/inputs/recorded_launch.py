"""A launch as it travels: read where the command was typed, so that a mistake in it is said once.

Without this machine's variables: those that it leaves open are each node's own, as are files with
an absolute name.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from checks.base.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.inputs.launch_words import LaunchWords

if TYPE_CHECKING:
    from preflight.inputs.written_launch import WrittenLaunch


def recorded_launch(launch: LaunchWords) -> bytes | None:
    """Return the record of a launch, which every command takes as a launch; None without a
    launch.

    Raises UsageError for anything else, and for a launch that is not read in time.
    """
    from checks.base.recording import RecordingRoot
    from checks.base.root import Root
    from preflight.inputs.host_source import RECORD_SCHEMA, Host, launch_of
    from preflight.inputs.launch_record import launch_record

    nowhere = Host(RecordingRoot(Root(os.devnull)), "/", {}, None)

    def read() -> bytes | None:
        """Read the launch from its own folder, and return its record."""
        folder, words, env_files = "", launch.words, launch.env_files
        if len(words) == 1 and not launch.is_command and os.path.exists(words[0]):
            # By its own name alone, which findings say: where it lies here is nobody's business.
            folder, name = os.path.split(words[0].rstrip("/"))
            words = (name,)
            env_files = tuple(os.path.relpath(path, folder or ".") for path in env_files)
        here = os.getcwd()
        os.chdir(folder or ".")
        try:
            written = launch_of(launch._replace(words=words, env_files=env_files), nowhere)
            if written is None:
                return None
            files = {
                name: Unknown(f"{name}: not beside the launch", text.absent)
                if isinstance(text, Unknown)
                else text
                for name, text in _beside(written[0], launch.sglang_version).items()
            }
        finally:
            os.chdir(here)
        return json.dumps({"schema": RECORD_SCHEMA, **launch_record(*written, files)}).encode()

    return within(limit_seconds(), "the launch", read)


def _beside(written: WrittenLaunch, sglang_version: str | None) -> dict[str, str | Unknown]:
    """Read the files beside the launch, by the launch's names for them. Raises UsageError."""
    from preflight.inputs.host_source import noting
    from preflight.processes.processes import understand

    texts: dict[str, str | Unknown] = {}
    try:
        understand(written.reading.commands, noting(written.read_file, texts), sglang_version)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return texts
