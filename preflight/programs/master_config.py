"""``mooncake_master --config_path FILE``: a YAML or JSON file, below the command line's own flags.

Source: Mooncake 0.3.13 ``mooncake-store/src/master.cpp`` (``InitMasterConf`` reads the file, then
``LoadConfigFromCmdline`` takes each flag that was given) and ``default_config.cpp``.
"""

from __future__ import annotations

from checks.base.unknown import Unknown
from preflight.launches.documents import load_documents
from preflight.launches.source import Origin, ReadFile, SourceError, Word
from preflight.programs.mooncake_flags import flags_of, value_of
from preflight.programs.sglang_arguments import unresolved


def with_config_file(
    arguments: tuple[Word, ...], read_file: ReadFile
) -> tuple[tuple[Word, ...], Unknown | None]:
    """Return the flags with those of the file in front, where the later one counts.

    And why the file is not read, if so. A key that is no flag is passed over, as the master does.
    """
    path = value_of(arguments, "config_path")
    if path is None or not path.text:
        return arguments, None
    if path.unresolved:
        return arguments, unresolved(path)
    text = read_file(path.text)
    if isinstance(text, Unknown):
        return arguments, Unknown(f"--config_path {path.text}: {text.reason}")
    try:
        documents = load_documents(text, path.text)
    except SourceError as error:
        return arguments, Unknown(f"--config_path {path.text}: {error}")
    known = flags_of("mooncake_master")
    given = tuple(
        Word(f"--{key}={node.text}", Origin(path.text, node.line))
        for document in documents[:1]
        for key, node in document.fields.items()
        if node.text is not None and key in known
    )
    return (*given, *arguments), None
