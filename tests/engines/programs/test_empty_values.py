"""Empty values: what the real programs did with each is a table, and what is judged is compared."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from checks.framework.problem import Severity
from preflight.engines.programs.mooncake_flags import empty_values
from preflight.launch_problems.rules.launch_rules import findings
from preflight.launches.source import Command, Origin, Word
from tests.builders.launch_text import SERVICE, understood

ORIGIN = Origin("launch.sh", 1)
CLIENT = {
    "host": "127.0.0.1",
    "port": "50052",
    "protocol": "tcp",
    "master_server_address": "127.0.0.1:50051",
    "metadata_server": "P2PHANDSHAKE",
    "global_segment_size": "32MB",
}
MASTER = {"rpc_port": "50051", "metrics_port": "9003", "http_metadata_server_port": "8080"}
OF_SERVICE = {
    "MOONCAKE_MASTER": "127.0.0.1:50051",
    "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
    "MOONCAKE_PROTOCOL": "tcp",
    "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1",
}


def command(program: str, name: str, value: str) -> Command:
    flags: Mapping[str, str] = {"mooncake_master": MASTER}.get(program, CLIENT)
    environment: dict[str, str] = {}
    words = [program, *(f"--{flag}={given}" for flag, given in flags.items() if flag != name)]
    if program == "service":
        words, environment = SERVICE.split(), {**OF_SERVICE, name: value}
    elif program == "client":
        words, environment = ["mooncake_client", *words[1:]], {name: value}
    else:
        words.append(f"--{name}={value}")
    given = {variable: Word(text, ORIGIN) for variable, text in environment.items()}
    return Command(tuple(Word(word, ORIGIN) for word in words), given, (), ORIGIN)


@pytest.mark.parametrize("program", ["mooncake_master", "mooncake_client", "client", "service"])
def test_what_an_empty_value_ends_fails_and_nothing_else(program: str) -> None:
    rows = [row for row in empty_values() if row[0] == program]
    assert len(rows) > 20
    wrong = []
    for _, name, value, code, _ in rows:
        found = findings(understood(command(program, name, value)))
        texts = [one.text for one in found if one.severity is Severity.FAIL]
        if bool(texts) is (code == "runs"):
            wrong.append((name, value, code))
        if (program, name, value) == ("mooncake_client", "host", ""):  # in the program's words
            assert ["exit code 134" in text and "local_hostname is empty" in text for text in texts]
    assert wrong == []
