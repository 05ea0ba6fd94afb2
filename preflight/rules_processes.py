"""Rules about the store's own processes: the store service and mooncake_client."""

from __future__ import annotations

from preflight.launch_processes import LaunchProcess
from preflight.rules import RuleSet, Seen, Severity

RULES = RuleSet()


@RULES.launch(
    "store-service-refused",
    Severity.FAIL,
    "a store service whose configuration Mooncake refuses",
    "ValueError at start",
    "give what the message asks for; sizes are bytes, or a number with kb, mb, gb or tb",
    "Mooncake mooncake_config.py, 0.3.12 and later",
)
def store_service_refused(processes: tuple[LaunchProcess, ...]) -> list[Seen]:
    return [
        Seen(f"store service: {message}", process.command.origin)
        for process in processes
        if process.store
        for message in process.store.refused
    ]


@RULES.launch(
    "client-size-misread",
    Severity.WARN,
    "a size that mooncake_client cannot read",
    "it takes 0 without a word: the client runs and contributes nothing",
    "write a number with B, KB, MB, GB or TB; MiB and GiB are not read",
    "Mooncake real_client_main.cpp; seen by running it",
)
def client_size_misread(processes: tuple[LaunchProcess, ...]) -> list[Seen]:
    return [
        Seen(message, process.command.origin)
        for process in processes
        if process.store
        for message in process.store.misread
    ]
