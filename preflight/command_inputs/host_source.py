"""The host that a command looks at, and the launch that goes with it: this machine or a capture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.framework.recording import RecordingRoot
from checks.framework.unknown import Unknown
from checks.host_snapshot.capture import Capture, open_root
from checks.host_snapshot.root_names import CaptureError, is_description
from checks.run_checks.facts import DEFAULT_LIMIT_SECONDS
from preflight.base.usage_error import UsageError
from preflight.base.within import LateError, limit_seconds, within
from preflight.command_inputs.launch_words import LaunchWords

if TYPE_CHECKING:
    from checks.framework.installed import Installed
    from checks.framework.needs import LaunchNeeds
    from checks.host_snapshot.described import DescribedRoot
    from preflight.command_inputs.written_launch import WrittenLaunch
    from preflight.launches.source import ReadFile
    from preflight.needs.launch_sizing import LaunchSizing
    from preflight.processes.processes import LaunchOptions

# How a launch that was read elsewhere says what it is.
RECORD_SCHEMA = "mooncake-preflight/launch-record/v1"


class Host(NamedTuple):
    """A host to judge a launch on: a machine, a tree, a capture, or a description."""

    root: RecordingRoot  # asked each thing once
    name: str
    environment: Mapping[str, str]  # of the launch, the captured one for a capture
    capture: Capture | None  # None on a machine or a tree of files
    described_root: DescribedRoot | None = None  # None for a host that was there

    @property
    def extras(self) -> Mapping[str, Any]:
        return {} if self.capture is None else self.capture.extras


def open_host(path: str, limit_seconds: float = DEFAULT_LIMIT_SECONDS) -> Host:
    """Open a host: this machine, a tree of files, a capture or a description.

    Raises:
        UsageError: If ``path`` is none of these, or does not answer in ``limit_seconds``.
    """
    try:
        root = within(limit_seconds, f"--root {path}", lambda: open_root(path))
    except CaptureError as error:
        raise UsageError(str(error)) from None
    if is_description(path):
        from checks.host_snapshot.described import DescribedRoot

        assert isinstance(root, DescribedRoot)
        return Host(RecordingRoot(root), path, os.environ, None, root)
    capture = root if isinstance(root, Capture) else None
    recorded = None if capture is None else capture.extras.get("environment")
    environment = os.environ if not isinstance(recorded, dict) else recorded
    return Host(RecordingRoot(root), path, environment, capture)


def launch_of(launch_words: LaunchWords, host: Host) -> tuple[WrittenLaunch, LaunchOptions] | None:
    """Return the launch that is asked about, and its options: the one given, else the one in the
    capture.

    A launch that was read elsewhere is given as its record; this host resolves the words that the
    record leaves unresolved. Options that are given replace recorded ones.

    Returns:
        None without a launch.

    Raises:
        UsageError: If the launch cannot be read, or if options are about a launch and none is
            given.
    """
    carried = _record_in(launch_words)
    recorded: Any = host.extras.get("launch") if carried is None else carried
    if not launch_words.words and recorded is None:
        _refuse_without_launch(launch_words)
        return None
    from preflight.command_inputs.written_launch import host_words, options_of, read_launch
    from preflight.launches.wrappers import is_gate
    from preflight.needs.chosen_releases import installed_there

    version, gpu_bytes = host.extras.get("mooncake_version"), launch_words.gpu_bytes
    given_options = options_of(launch_words)._replace(
        mooncake_version=launch_words.mooncake_version
        or (version if isinstance(version, str) else None),
        gpu_bytes=gpu_bytes
        or (None if host.described_root is None else host.described_root.gpu_bytes),
        installed=captured_installed(host),
    )
    if launch_words.words and carried is None:
        of = host.environment, host.root, launch_words.is_command
        launch = read_launch(launch_words.words, launch_words.env_files, *of)
        if launch_words.by_program:
            from preflight.launches.source import name_by_program

            launch = launch._replace(reading=name_by_program(launch.reading))
        if host.capture is None:
            installed = installed_there(launch.reading, host.root)
            given_options = given_options._replace(installed=installed)
        if not any(is_gate(each) for one in launch.reading.commands for each in one.wrappers):
            return launch, given_options
        from preflight.command_inputs.gate_options import with_gate_options

        reading, given_options = with_gate_options(launch.reading, given_options, launch.read_file)
        return launch._replace(reading=reading), given_options
    from preflight.command_inputs.launch_record import launch_from

    where = f"--root {host.name}" if carried is None else launch_words.words[0]
    try:
        launch, options = launch_from(recorded, host.root.text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{where}: its launch cannot be read: {error!r}") from None
    if carried is not None:  # what it leaves open is this host's own
        from preflight.launches.shell_script import in_environment

        reading = in_environment(launch.reading, host.environment, host_words(host.root))
        launch = launch._replace(reading=reading)
        if host.capture is None:
            given_options = given_options._replace(installed=installed_there(reading, host.root))
    more = {name: value for name, value in given_options._asdict().items() if value is not None}
    return launch, options._replace(**more)


def _record_in(launch: LaunchWords) -> dict[str, Any] | None:
    """Return the record in the file that is given as the launch; None for every other launch.

    Raises:
        UsageError: For a record that is not complete.
    """
    import json

    from preflight.launches.env_files import read_given_file

    if len(launch.words) != 1 or launch.is_command:
        return None
    text = (read_given_file(launch.words[0]) or "").lstrip()
    if not text.startswith("{") or RECORD_SCHEMA not in text[:200]:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{launch.words[0]}: this record of a launch breaks off") from None
    return record if isinstance(record, dict) and record.get("schema") == RECORD_SCHEMA else None


class Sized(NamedTuple):
    """The launch held against the host, and what it needs."""

    sizing: LaunchSizing
    needs: LaunchNeeds  # if a pool is known between two bounds, at the upper one
    least_needs: LaunchNeeds | None  # at the lower bound, None if it is the same
    launch: WrittenLaunch  # what was sized
    options: LaunchOptions  # by which it was sized


def size_and_needs(
    launch_words: LaunchWords, host: Host, files: dict[str, str | Unknown] | None = None
) -> Sized | None:
    """Return a launch's sizing and needs, None without a launch.

    Args:
        files: Filled with the texts read beside the launch, by name.

    Raises:
        UsageError: If the launch cannot be read.
    """
    written = launch_of(launch_words, host)
    if written is None:
        return None
    from preflight.command_inputs.written_launch import size_written
    from preflight.needs.launch_needs import launch_needs

    launch, options = written
    if files is not None:
        launch = launch._replace(read_file=noting(launch.read_file, files))
    sizing = size_written(launch, options, host.root)
    return Sized(sizing, launch_needs(sizing), _least_needs(sizing), launch, options)


def _least_needs(sizing: LaunchSizing) -> LaunchNeeds | None:
    """Compute the needs at the lower bound of the pools; None if both bounds are the same."""
    from preflight.needs.launch_needs import launch_needs

    inputs = sizing.inputs
    if sizing.least is None or inputs.most == inputs.least:
        return None
    memory = {
        number: memory_of._replace(
            most_pools_bytes=memory_of.least_pools_bytes, most_by_stage=memory_of.least_by_stage
        )
        for number, memory_of in inputs.memory.items()
    }
    lower = inputs._replace(most=inputs.least, memory=memory)
    return launch_needs(sizing._replace(inputs=lower, most=sizing.least))


def noting(read: ReadFile, files: dict[str, str | Unknown]) -> ReadFile:
    """Return a reader that also puts each file that it reads by a relative name into ``files``: its
    text, or why there is none.
    """

    def reads(name: str) -> str | Unknown:
        text = read(name)
        if not name.startswith("/"):
            files[name] = text
        return text

    return reads


def size_within(launch: LaunchWords, host: Host, limit_seconds: float) -> Sized | Unknown | None:
    """Return ``size_and_needs``; Unknown after ``limit_seconds``: a file may be on a dead mount."""
    try:
        return within(limit_seconds, "the launch", lambda: size_and_needs(launch, host))
    except LateError:
        return Unknown(f"the launch, or a file that it names, was not read in {limit_seconds:g} s")


def captured_installed(host: Host) -> Installed | None:
    """Return the releases installed on a capture's machine; None for any other host, and for a
    capture without them.
    """
    recorded = host.extras.get("installed")
    if not isinstance(recorded, dict):
        return None
    from checks.framework.installed import Installed

    sglang = recorded.get("sglang")
    mooncake, others = _pairs(recorded.get("mooncake")), _pairs(recorded.get("others"))
    return Installed(mooncake, sglang if isinstance(sglang, str) else None, others=others)


def _pairs(recorded: object) -> tuple[tuple[str, str], ...]:
    pairs = recorded if isinstance(recorded, list) else []
    two = (pair for pair in pairs if isinstance(pair, list) and len(pair) == 2)
    return tuple((str(name), str(version)) for name, version in two)


def _refuse_without_launch(launch: LaunchWords) -> None:
    """Raise UsageError if an option about a launch is given; the caller has no launch."""
    named = {"env_files": "--env-file", "gpu_bytes": "--gpu-memory"}
    for name in (name for name, value in launch._asdict().items() if value):
        usual = f"--{name.replace('_', '-').replace('-nodes', '-numa-nodes')}"
        option = named.get(name, usual)
        raise UsageError(f"{option} is about a launch: give a script, or a command after --")


def recorded_launch(launch: LaunchWords) -> bytes | None:
    """Return the record of a launch as JSON, which every command takes as a launch; None without a
    launch.

    The launch is read where the command was typed, so that a mistake in it is reported once. This
    machine's variables, and its files with an absolute name, are not used: they differ by node. The
    working folder of this process changes meanwhile.

    Raises:
        UsageError: If the launch cannot be read, or is late.
    """
    import json

    from checks.framework.root import Root
    from preflight.command_inputs.launch_record import launch_record

    nowhere = Host(RecordingRoot(Root(os.devnull)), "/", {}, None)

    def read() -> bytes | None:
        """Read the launch in the folder where it lies, and return the record."""
        folder, argv, env_files = "", launch.words, launch.env_files
        if len(argv) == 1 and not launch.is_command and os.path.exists(argv[0]):
            # By its own name alone, which findings say: where it lies here is nobody's business.
            folder, name = os.path.split(argv[0].rstrip("/"))
            argv = (name,)
            env_files = tuple(os.path.relpath(path, folder or ".") for path in env_files)
        here = os.getcwd()
        os.chdir(folder or ".")
        try:
            written = launch_of(launch._replace(words=argv, env_files=env_files), nowhere)
            if written is None:
                return None
            files = {
                name: Unknown(f"{name}: not beside the launch", text.absent)
                if isinstance(text, Unknown)
                else text
                for name, text in _files_read(written[0], launch.sglang_version).items()
            }
        finally:
            os.chdir(here)
        return json.dumps({"schema": RECORD_SCHEMA, **launch_record(*written, files)}).encode()

    return within(limit_seconds(), "the launch", read)


def _files_read(written: WrittenLaunch, sglang_version: str | None) -> dict[str, str | Unknown]:
    """Return the text of each file that the launch's programs read by a relative name, or Unknown
    with the reason.

    Raises:
        UsageError: If ``sglang_version`` is no version.
    """
    from preflight.processes.processes import understand

    texts: dict[str, str | Unknown] = {}
    try:
        understand(written.reading.commands, noting(written.read_file, texts), sglang_version)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return texts
