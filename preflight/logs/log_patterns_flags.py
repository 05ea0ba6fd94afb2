"""Known lines with which mooncake_master and mooncake_client refuse their own flags.

Wording: gflags 2.1 and 2.2, Mooncake 0.3.13.post1 and 0.3.14 (master.cpp, master_service.cpp,
master_service_supervisor.cpp); all but the build's own lines were provoked.
"""

from __future__ import annotations

from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage

_REFUSED = "mooncake-flags-refused"


def _read_unknown(groups: Groups, seen: Seen) -> Reading:
    from preflight.programs.mooncake_flags import NEWEST, OLDEST, flags_of

    name = groups.get("name", "")
    for program in ("mooncake_master", "mooncake_client"):
        flag = flags_of(program).get(name)
        if flag is None or not (flag.since or flag.until):
            continue
        until = f"to {flag.until}" if flag.until else "on"
        since = flag.since or OLDEST
        return Reading(decided=f"{program} has --{name} from {since} {until}.")
    return Reading(decided=f"no release from {OLDEST} to {NEWEST} is known to have it.")


def _line(
    id_: str,
    literals: tuple[str, ...],
    regex: str,
    cause: str,
    remedy: str,
    apart: str = "",
    checks: tuple[str, ...] = (_REFUSED,),
) -> Pattern:
    return Pattern(id_, Layer.MOONCAKE, Stage.CAUSE, literals, regex, checks, cause, remedy, apart)


PATTERNS = (
    _line(
        "mooncake.flag-unknown",
        ("unknown command line flag",),
        r"unknown command line flag '(?P<name>[^'\n]{1,80})'",
        "this release of the program has no flag --{name}",
        "take it out, or install the release that has it",
        checks=(
            "mooncake-flag-unknown",
            "mooncake-flag-of-some-releases",
            "software.version-skew",
        ),
    )._replace(read=_read_unknown),
    _line(
        "mooncake.flag-illegal",
        ("ERROR: illegal value '", "ERROR: boolean value (", "' is missing its argument"),
        r"ERROR: illegal value '(?P<value>[^'\n]{0,80})' specified for (?P<type>\w{1,20}) flag "
        r"'(?P<name>\w{1,80})'|ERROR: boolean value \((?P<value2>\w{1,80})\) specified for "
        r"(?P<type2>\w{1,20}) command line flag|ERROR: flag '--(?P<name2>[\w-]{1,80})' is missing",
        "a flag of the program has a value of another kind than it takes, or none",
        "write --flag=value; a switch takes true or false, and only behind =",
    ),
    _line(
        "mooncake.flag-value",
        ("must be between 0.0 and 1.0",),
        r"(?P<name>[\w ]{1,40}ratio) must be between 0\.0 and 1\.0",
        "{name} is no fraction of 1",
        "write a number from 0 to 1",
    ),
    _line(
        "mooncake.flag-invalid",
        ("Invalid value for --",),
        r"Invalid value for --(?P<name>[\w-]{1,60}): (?P<value>[^\n]{0,80})",
        "--{name} does not take {value}",
        "see its help for what it takes",
    ),
    _line(
        "mooncake.master-refuses",
        (
            "HA backend connection string must be set",
            "enable_oplog ",
            "Invalid memory allocator: ",
            "offloading_queue_limit must be",
            "must be larger than put_start_discard_timeout_sec",
            "Invalid Client liveness configuration",
            "Failed to parse HA backend config",
            "Failed to create snapshot stores",
            "snapshot_retention_count must be > 0",
            "dynamic_replication_",
        ),
        r"(?P<what>HA backend connection string must be set|enable_oplog (?:requires|currently "
        r"requires) [^\n]{1,60}|Invalid memory allocator: [^\n]{1,80}|offloading_queue_limit must "
        r"be [^\n]{1,60}|put_start_release_timeout[^\n]{0,60} must be larger than put_start_discard"
        r"_timeout_sec|Invalid Client liveness configuration[^\n]{0,100}|Failed to parse HA backend"
        r" config[^\n]{0,100}|Failed to create snapshot stores[^\n]{0,120}|"
        r"snapshot_retention_count must be > 0|dynamic_replication_\w{1,50} must be [^\n]{1,60})",
        "mooncake_master refuses its settings and ends: {what}",
        "mend the flag, or the same setting in the file of --config_path",
        "UNAVAILABLE_IN_CURRENT_MODE is a build without that backend: the wheels have etcd alone",
    ),
    _line(
        "mooncake.master-config",
        ("Failed to initialize default config: ",),
        r"Failed to initialize default config: (?P<error>[^\n]{1,120})",
        "the file of --config_path cannot be read as JSON or YAML ({error}); a file that is not "
        "there is said to have a syntax error, too",
        "see that the file is there in this container, and ends in .json, .yaml or .yml",
        checks=(_REFUSED, "storage.files"),
    ),
    _line(
        "mooncake.master-interface",
        ("Failed to resolve rpc_interface=",),
        r"Failed to resolve rpc_interface=(?P<name>[^\s:]{1,40}): (?P<error>[^\n]{1,120})",
        "mooncake_master was to listen on the interface {name}, which it cannot ({error})",
        "name an interface of this network namespace that has an IPv4 address (ip -br addr)",
        checks=("network.advertised-address",),
    ),
    _line(
        "mooncake.not-built-in",
        ("is not enabled in compilation",),
        r"(?P<name>Etcd|K8s Lease) is not enabled in compilation",
        "this build of Mooncake has no {name}, which its settings ask for",
        "install a build that has it, or use P2PHANDSHAKE or an HTTP metadata server, and no "
        "--enable_ha",
        checks=("service.address",),
    ),
)
