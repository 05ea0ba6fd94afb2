"""The flags that mooncake_master and mooncake_client know, and how gflags reads a command line.

An unknown flag or a value of another type ends the program before it does anything. The tables are
those of --helpfull of the wheels 0.3.7.post2 to 0.3.14; the reading is gflags' (gflags.cc
CommandLineFlagParser), with its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.launches.source import Word

OLDEST, NEWEST = "0.3.7.post2", "0.3.14"
# type name..., each with :since and -until where a release has not always had it or has it no more.
_MASTER = """
bool allow_evict_soft_pinned_objects enable_cxl:0.3.9 enable_disk_eviction:0.3.8 enable_ha
  enable_http_metadata_server enable_kv_events:0.3.12 enable_metadata_cleanup_on_timeout:0.3.12
  enable_metric_reporting enable_multi_tenants:0.3.12 enable_offload:0.3.8 enable_oplog:0.3.13
  enable_oplog_snapshot:0.3.14 enable_snapshot:0.3.10-0.3.13.post1
  enable_snapshot_restore:0.3.10-0.3.13.post1 kv_events_emit_legacy_compat:0.3.12
  kv_events_emit_object_key:0.3.12 offload_force_evict:0.3.11 offload_on_evict:0.3.11
  promotion_on_hit:0.3.11.post1 rpc_enable_tcp_no_delay
  weight_management_oplog_capability_confirmed:0.3.14
double dynamic_replication_admission_qps_threshold:0.3.13 eviction_high_watermark_ratio
  eviction_ratio nof_eviction_high_watermark_ratio:0.3.11 nof_eviction_ratio:0.3.11
  offload_cap_ratio:0.3.12 tenant_eviction_high_watermark_ratio:0.3.14
int32 handler_worker_thread_num:0.3.14 http_metadata_server_port max_threads metrics_port
  oplog_poll_interval_ms:0.3.13 port rpc_conn_timeout_seconds rpc_port rpc_thread_num
int64 client_active_ttl_sec:0.3.14 client_suspicion_ttl_sec:0.3.14 client_ttl
  global_file_segment_size ha_leader_lease_ttl_sec:0.3.14 nof_heartbeat_interval_sec:0.3.11
string allocation_strategy:0.3.10 cluster_id config_path cxl_path:0.3.9 default_kv_lease_ttl
  default_kv_soft_pin_ttl dynamic_replication_mode:0.3.13 etcd_endpoints
  ha_backend_connstring:0.3.10.post2 ha_backend_type:0.3.10.post2 http_metadata_server_host
  kv_events_additional_salt:0.3.12 kv_events_backend_id:0.3.12 kv_events_bind_endpoint:0.3.12
  kv_events_lora_name:0.3.12 kv_events_model_name:0.3.12 kv_events_tenant_id:0.3.12
  max_kv_soft_pin_ttl:0.3.13 memory_allocator metrics_host:0.3.13 pod_name:0.3.12
  pod_namespace:0.3.12 root_fs_dir rpc_address rpc_interface:0.3.10.post2
  snapshot_backend_type:0.3.10-0.3.10 snapshot_backup_dir:0.3.10-0.3.13.post1
  snapshot_catalog_backend_connstring:0.3.10.post2-0.3.13.post1
  snapshot_catalog_backend_type:0.3.10.post2-0.3.13.post1
  snapshot_catalog_store_connstring:0.3.10.post2-0.3.13.post1
  snapshot_catalog_store_type:0.3.10.post2-0.3.13.post1 snapshot_object_store_type:0.3.10.post2
  snapshot_payload_backend_type:0.3.10.post2-0.3.13.post1
  snapshot_payload_store_type:0.3.10.post2-0.3.13.post1 tenant_quota_connector_type:0.3.12
  tenant_quota_connector_uri:0.3.12
uint32 batch_oplog_retry_timeout_sec:0.3.13 dynamic_replication_heat_window_seconds:0.3.13
  kv_events_block_size:0.3.12 kv_events_dp_rank:0.3.12 kv_events_queue_capacity:0.3.12
  max_retry_attempts:0.3.10 max_total_finished_tasks:0.3.8.post1
  max_total_pending_tasks:0.3.8.post1 max_total_processing_tasks:0.3.8.post1
  nof_heartbeat_failures_threshold:0.3.11 nof_heartbeat_probe_timeout_ms:0.3.11
  oplog_batch_max_entries:0.3.13 promotion_admission_threshold:0.3.11.post1
  promotion_max_per_heartbeat:0.3.12 promotion_queue_limit:0.3.11.post1
  snapshot_retention_count:0.3.10-0.3.13.post1
uint64 cxl_size:0.3.9 dynamic_replication_max_memory_replicas:0.3.13
  offloading_queue_limit:0.3.12 pending_task_timeout_sec:0.3.8.post1
  processing_task_timeout_sec:0.3.8.post1 put_start_discard_timeout_sec:0.3.8
  put_start_release_timeout_sec:0.3.8 quota_bytes:0.3.8
  snapshot_child_timeout_seconds:0.3.10-0.3.13.post1 snapshot_chunk_object_count:0.3.14
  snapshot_interval_seconds:0.3.10 weight_import_idle_timeout_ms:0.3.14
bool use_mmap_arena_allocator:0.3.11-0.3.13.post1
uint64 mmap_arena_pool_size:0.3.11-0.3.13.post1
"""
_CLIENT = """
bool enable_http_server:0.3.10 enable_offload start_offload_rpc_server:0.3.11
  use_mmap_arena_allocator:0.3.11
int32 http_port:0.3.10 port threads
string device_names global_segment_size host local_buffer_size:0.3.12 master_server_address
  metadata_server protocol tenant_id:0.3.12
uint64 mmap_arena_pool_size:0.3.11
"""
# gflags' own and glog's, in all of them.
_COMMON = """
bool alsologtostderr colorlogtostderr drop_log_memory help helpfull helppackage helpshort
  helpxml log_prefix logtostderr stop_logging_if_full_disk symbolize_stacktrace version
int32 logbuflevel logbufsecs logemaillevel logfile_mode max_log_size minloglevel
  stderrthreshold tab_completion_columns v
string alsologtoemail flagfile fromenv helpmatch helpon log_backtrace_at log_dir log_link
  logmailer tab_completion_word tryfromenv undefok vmodule
"""
_TYPES = frozenset("bool double int32 int64 string uint32 uint64".split())
TRUE, FALSE = frozenset("1 t true y yes".split()), frozenset("0 f false n no".split())
_BITS = {"int32": 31, "int64": 63, "uint32": 32, "uint64": 64}


class Flag(NamedTuple):
    """A flag's type, and the releases that have it: since and until, "" for all known ones."""

    type: str
    since: str = ""
    until: str = ""


class Given(NamedTuple):
    """One flag of a command line, as gflags reads it.

    value: None where a variable decides it. problem: the program's own words for why it ends, ""
    where it goes on. passed_over: the word behind a switch, which looks like its value.
    """

    name: str
    value: str | None
    word: Word
    problem: str = ""
    flag: Flag | None = None
    passed_over: str = ""


def flags_of(program: str) -> Mapping[str, Flag]:
    """Of mooncake_master or mooncake_client, by name."""
    return _table(_COMMON) | _table(_MASTER if program == "mooncake_master" else _CLIENT)


def _table(text: str) -> dict[str, Flag]:
    flags, kind = {}, ""
    for word in text.split():
        if word in _TYPES:
            kind = word
            continue
        name, _, releases = word.partition(":")
        since, _, until = releases.partition("-")
        flags[name] = Flag(kind, since, until)
    return flags


def read_flags(words: tuple[Word, ...], known: Mapping[str, Flag]) -> Iterator[Given]:
    """Every flag of a command line in its order; what else stands there is passed over."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word.text == "--":
            return
        if not word.text.startswith("-") or word.text == "-":
            continue
        key, equals, value = word.text.removeprefix("-").removeprefix("-").partition("=")
        name = key.replace("-", "_")
        if word.unresolved and not re.fullmatch(r"\w+", name):
            continue
        resolved: str | None = None if word.unresolved else value
        negated = known.get(name.removeprefix("no")) if name not in known else None
        if negated is not None:
            bare = name.removeprefix("no")
            says = f"ERROR: boolean value ({name}) specified for {negated.type} command line flag"
            problem = "" if negated.type == "bool" else says
            yield Given(bare, "0", word, problem, negated)
            continue
        flag = known.get(name)
        if flag is None:
            yield Given(name, resolved, word, f"ERROR: unknown command line flag '{name}'")
        elif flag.type == "bool" and not equals:
            beside = left[0].text if left else ""
            looks = beside.lower() in TRUE | FALSE
            yield Given(name, "1", word, "", flag, beside if looks else "")
        elif equals:
            yield Given(name, resolved, word, _illegal(name, flag, resolved), flag)
        elif not left:
            says = f"ERROR: flag '--{name}' is missing its argument"
            yield Given(name, None, word, "" if word.unresolved else says, flag)
        else:
            argument = left.pop(0)
            resolved = None if argument.unresolved else argument.text
            yield Given(name, resolved, word, _illegal(name, flag, resolved), flag)


def value_of(words: tuple[Word, ...], name: str) -> Word | None:
    """What ``--name=value``, ``-name value`` or ``--na-me`` gives, as gflags and argparse read it.

    The last one counts; its text is empty where it stands alone.
    """
    found = None
    for index, word in enumerate(words):
        flag, equals, value = word.text.lstrip("-").partition("=")
        if not word.text.startswith("-") or flag.replace("-", "_") != name:
            continue
        following = words[index + 1 : index + 2]
        if equals:
            found = word._replace(text=value)
        elif following and not following[0].text.startswith("-"):
            found = following[0]
        else:
            found = word._replace(text="")
    return found


def is_on(words: tuple[Word, ...], program: str, name: str) -> bool | None:
    """Whether a switch that is off by default is on, the last one counting; None: a variable's.

    ``--name false`` turns it on: gflags takes no value from the next word.
    """
    on: bool | None = False
    for given in read_flags(words, flags_of(program)):
        if given.name == name:
            on = None if given.value is None else given.value.lower() in TRUE or not given.value
    return on


def _illegal(name: str, flag: Flag, value: str | None) -> str:
    if value is None or _legal(flag.type, value):
        return ""
    return f"ERROR: illegal value '{value}' specified for {flag.type} flag '{name}'"


def _legal(kind: str, value: str) -> bool:
    """Whether gflags takes ``value`` for a flag of type ``kind``."""
    if kind == "string":
        return True
    if kind == "bool":
        return value.lower() in TRUE | FALSE
    text = value.lstrip(" \t\n\v\f\r")
    if kind == "double":
        return as_double(text) is not None
    if not re.fullmatch(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)", text) or len(text) > 40:
        return False
    number = int(text, 16) if "x" in text.lower() else int(text)
    if kind.startswith("u"):
        return not text.startswith("-") and number < 1 << _BITS[kind]
    return -(1 << _BITS[kind]) <= number < 1 << _BITS[kind]


def as_double(value: str) -> float | None:
    """As strtod reads the whole of it: also 0x1p-1, inf and nan; None where it does not."""
    text = value.strip()
    if not text or "_" in text or text != value.lstrip():
        return None
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        return None
