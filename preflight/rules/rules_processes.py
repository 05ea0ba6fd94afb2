"""Rules about the store's own processes: the store service and mooncake_client."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.processes.mooncake_users import place
from preflight.processes.processes import Kind, LaunchProcess
from preflight.programs.mooncake_flags import is_on, value_of
from preflight.programs.store_service_config import KEYS, SERVICE_PORT
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_SERVICE = "Mooncake mooncake_store_service.py"


@RULES.launch(
    "store-service-refused",
    Severity.FAIL,
    "a store service whose arguments or configuration Mooncake refuses",
    "it ends at start: exit code 2, a ValueError, or a setup that is tried again until "
    "--max-wait-time",
    "give what the message asks for; sizes are bytes, or a number with kb, mb, gb or tb",
    "Mooncake mooncake_config.py, mooncake_store_service.py, real_client.cpp, 0.3.12 and later",
)
def store_service_refused(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process in processes:
        for message in process.store.refused if process.store else ():
            yield Seen(f"{process.kind.value}: {message}", process.command.origin)


@RULES.launch(
    "service-setting-misread",
    Severity.WARN,
    "a -D of the store service that does not do what it says",
    "it replaces the parsed value by its text, unchecked, or is dropped with a warning",
    "write -Dkey=value with a value that the C++ library reads, or set it in the file",
    f"{_SERVICE} main, real_client.cpp",
)
def service_setting_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process in processes:
        if process.kind is Kind.STORE_SERVICE and process.store:
            for message in process.store.misread:
                yield Seen(message, process.command.origin)


@RULES.launch(
    "service-key-unknown",
    Severity.WARN,
    "a setting of the store service that Mooncake does not know",
    "it is passed over without a word",
    "spell it as Mooncake does",
    f"{_SERVICE}, mooncake_config.py from_file",
)
def service_key_unknown(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    import difflib

    for process in processes:
        for key in process.store.unknown_keys if process.store else ():
            near = difflib.get_close_matches(key.split("'")[1], list(KEYS), n=1, cutoff=0.75)
            hint = f": {near[0]}?" if near else ""
            text = f"{key} is no setting of the store service{hint}"
            yield Seen(text, process.command.origin)


@RULES.launch(
    "service-port-taken",
    Severity.WARN,
    "a store service on a port that another process of the launch listens on",
    "its HTTP server ends the service after setup: OSError, address already in use",
    "give each its own --port",
    f"{_SERVICE} start_http_service, http_metadata_server.py, master.cpp: all have 8080",
)
def service_port_taken(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    first: dict[tuple[object, int], LaunchProcess] = {}
    listening = [(process, _http_port(process), place(process)) for process in processes]
    # A master or a metadata server comes up in no time; a service only after its setup.
    for process, port, where in sorted(
        listening, key=lambda entry: entry[0].kind is Kind.STORE_SERVICE
    ):
        if port is None or where is None:
            continue
        other = first.setdefault((where, port), process)
        if other is not process and process.kind is Kind.STORE_SERVICE:
            yield Seen(f"{other.name} listens on port {port} too", process.command.origin)


@RULES.launch(
    "client-size-misread",
    Severity.WARN,
    "a size that mooncake_client cannot read",
    "it takes 0 without a word: the client runs and contributes nothing",
    "write a number with B, KB, MB, GB or TB; MiB and GiB are not read",
    "Mooncake real_client_main.cpp; seen by running it",
)
def client_size_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process in processes:
        if process.kind is Kind.CLIENT and process.store:
            for message in process.store.misread:
                yield Seen(message, process.command.origin)


def _http_port(process: LaunchProcess) -> int | None:
    """The port that a store service, a master's or a standalone metadata server listens on."""
    if process.kind is Kind.STORE_SERVICE:
        port = process.store.port if process.store else None
        return port if isinstance(port, int) else None
    if process.kind is Kind.METADATA:
        return _number(process, "port")
    if process.kind is Kind.MASTER:
        on = is_on(process.arguments, "mooncake_master", "enable_http_metadata_server")
        return _number(process, "http_metadata_server_port") if on else None
    return None


def _number(process: LaunchProcess, name: str) -> int | None:
    word = value_of(process.arguments, name)
    if word is None:
        return SERVICE_PORT
    text = word.text
    return int(text) if text.isdecimal() and len(text) < 6 else None
