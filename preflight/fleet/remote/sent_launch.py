"""A launch as it travels to a node: the files that say it, and the words that name them there.

The launch is read here too, so that a mistake in it is said once, before any node is asked. What is
read here decides nothing: variables that it leaves open are each node's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from checks.base.unknown import Unknown
from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.fleet.remote.program import SCRIPT, TOOL
from preflight.inputs.launch_words import Chosen, LaunchWords
from preflight.launches.env_files import LARGEST_FILE_BYTES, read_small_file

if TYPE_CHECKING:
    from preflight.inputs.written_launch import WrittenLaunch

# What the node's folder holds beside the launch.
_TAKEN = (SCRIPT, TOOL)
_MODEL_CONFIG = "model-config.json"
RECORD = "launch.json"


class Sent(NamedTuple):
    """files: name -> content, all in one folder. words: of ``mooncake-preflight``."""

    files: Mapping[str, bytes]
    words: tuple[str, ...]


def sent_launch(
    launch: LaunchWords, node_seconds: float, chosen: Chosen, as_record: bool = False
) -> Sent:
    """Return the launch as it is sent to the nodes.

    as_record: what was understood of the launch goes along, in place of its text. Raises UsageError
    for what is no launch, and for options that every node would refuse.
    """
    from preflight.check.answer import selection_of

    # The file of waivers is read here: what still holds of it goes along, the rest is said.
    selection = selection_of(chosen)
    for one in selection.over:
        said = f"--waivers: {one.check}: over since {one.until}: it counts again on every node"
        say(f"mooncake-preflight: {said}", err=True)
    sent = _recorded(launch) if as_record else launch_alone(launch)
    words = ["fleet", "node", f"--timeout={node_seconds:g}"]
    words += [f"--only={one}" for one in selection.only]
    words += [f"--skip={one}" for one in selection.skip]
    words += [f"--ignore={check}={reason}" for check, reason in selection.ignore.items()]
    return sent._replace(words=(*words, *sent.words))


def launch_alone(launch: LaunchWords) -> Sent:
    """Return the launch, with the words that any command that takes a launch is to be given.

    There are none without a launch. Raises UsageError for what is no launch, and for one that is
    not read in time.
    """
    return within(limit_seconds(), "the launch", lambda: _alone(launch))


def _alone(launch: LaunchWords) -> Sent:
    from preflight.inputs.host_source import launch_of, open_host

    if launch.mooncake_version is not None:
        from preflight.sizing.chosen_releases import choose_mooncake

        choose_mooncake(launch.mooncake_version)
    words: list[str] = []
    files: dict[str, bytes] = {}
    if launch.nic_nodes is not None:
        words.append(f"--nic-numa-nodes={_numbers(launch.nic_nodes)}")
    if launch.rank_nodes is not None:
        words.append(f"--rank-numa-nodes={_numbers(launch.rank_nodes)}")
    if launch.mooncake_version is not None:
        words.append(f"--mooncake-version={launch.mooncake_version}")
    if launch.sglang_version is not None:
        words.append(f"--sglang-version={launch.sglang_version}")
    if launch.gpu_bytes is not None:
        words.append(f"--gpu-memory={launch.gpu_bytes}b")
    if launch.model_config is not None:
        files[_MODEL_CONFIG] = launch.model_config.encode()
        words.append(f"--model-config={_MODEL_CONFIG}")
    for path in launch.env_files:
        words.append(f"--env-file={_added(files, path)}")
    # As a check of this host reads it, with the same refusals.
    found = launch_of(launch, open_host("/"))
    if found is None:
        return Sent(files, tuple(words))
    is_file = len(launch.words) == 1 and not launch.is_command
    named = _named_files(launch, found[0], is_file)
    if not is_file:
        return Sent({**named, **files}, (*words, "--", *launch.words))
    name = _added(files, launch.words[0])
    # What is called like the launch itself is the launch.
    return Sent({**named, **files}, (*words, "--", name))


def _recorded(launch: LaunchWords) -> Sent:
    """Return what was understood of the launch, as it is sent.

    Read where it lies, without this machine's variables: those that it leaves open are each node's
    own, as are files with an absolute name.
    """
    import json

    from checks.base.recording import RecordingRoot
    from checks.base.root import Root
    from preflight.inputs.host_source import Host, launch_of
    from preflight.inputs.launch_record import launch_record

    folder, words, env_files = "", launch.words, launch.env_files
    if len(words) == 1 and not launch.is_command and os.path.exists(words[0]):
        # By its own name alone, which findings say: where it lies here is nobody's business.
        folder, name = os.path.split(words[0].rstrip("/"))
        words = (name,)
        env_files = tuple(os.path.relpath(path, folder or ".") for path in env_files)
    nowhere = Host(RecordingRoot(Root(os.devnull)), "/", {}, None)

    def read() -> Sent:
        found = launch_of(launch._replace(words=words, env_files=env_files), nowhere)
        if found is None:
            return Sent({}, ())
        files = {
            name: Unknown(f"{name}: not beside the launch", text.absent)
            if isinstance(text, Unknown)
            else text
            for name, text in _beside(found[0], launch.sglang_version).items()
        }
        record = launch_record(*found, files)
        return Sent({RECORD: json.dumps(record).encode()}, (f"--launch-record={RECORD}",))

    here = os.getcwd()
    os.chdir(folder or ".")
    try:
        return within(limit_seconds(), "the launch", read)
    finally:
        os.chdir(here)


def _numbers(nodes: tuple[int, ...]) -> str:
    return ",".join(str(node) for node in nodes) or "none"


def _added(files: dict[str, bytes], path: str) -> str:
    """Put a file among ``files``, and return the name of its own that it has there.

    Raises UsageError where it cannot be read, or is too large.
    """
    base = os.path.basename(path).lstrip("-") or "launch"
    name, number = base, 1
    while name in files or name in _TAKEN:
        number += 1
        name = f"{number}-{base}"
    try:
        if path == "-":  # read already, as the launch that it is
            content = (read_small_file(path) or "").encode()
        else:
            with open(path, "rb") as file:
                content = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path!r} cannot be read: {why}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise UsageError(f"{path!r} is not sent: it has more than 4 MiB")
    files[name] = content
    return name


def _named_files(launch: LaunchWords, written: WrittenLaunch, is_file: bool) -> dict[str, bytes]:
    """Read the files beside the launch that it names: a store's configuration, an extra config.

    Those with an absolute name are each node's own.
    """
    folder = (os.path.dirname(launch.words[0]) if is_file else "") or "."
    found: dict[str, bytes] = {}
    for name, text in _beside(written, launch.sglang_version).items():
        inside = os.path.normpath(name)
        if isinstance(text, str) and not inside.startswith("..") and inside not in _TAKEN:
            with open(os.path.join(folder, name), "rb") as file:
                found[inside] = file.read(LARGEST_FILE_BYTES)
    return found


def _beside(written: WrittenLaunch, sglang_version: str | None) -> dict[str, str | Unknown]:
    """Return what was read beside the launch, by the names that it has for it.

    Raises UsageError.
    """
    from preflight.inputs.host_source import noting
    from preflight.processes.processes import understand

    found: dict[str, str | Unknown] = {}
    try:
        understand(written.reading.commands, noting(written.read_file, found), sglang_version)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return found
