"""Every known line, by layer."""

from __future__ import annotations

from preflight.logs import (
    log_patterns_connections,
    log_patterns_devices,
    log_patterns_faults,
    log_patterns_flags,
    log_patterns_host_memory,
    log_patterns_hugetlb,
    log_patterns_kernel,
    log_patterns_orchestration,
    log_patterns_process,
    log_patterns_registration,
    log_patterns_services,
    log_patterns_setup,
    log_patterns_sglang,
    log_patterns_start,
    log_patterns_store,
    log_patterns_threads,
)
from preflight.logs.log_pattern import Pattern

# Where several patterns look for the same words, the first that matches a line has it.
PATTERNS: tuple[Pattern, ...] = (
    *log_patterns_kernel.PATTERNS,
    *log_patterns_faults.PATTERNS,
    *log_patterns_hugetlb.PATTERNS,
    *log_patterns_host_memory.PATTERNS,
    *log_patterns_registration.PATTERNS,
    *log_patterns_devices.PATTERNS,
    *log_patterns_connections.PATTERNS,
    *log_patterns_services.PATTERNS,
    *log_patterns_flags.PATTERNS,
    *log_patterns_setup.PATTERNS,
    *log_patterns_store.PATTERNS,
    *log_patterns_sglang.PATTERNS,
    *log_patterns_process.PATTERNS,
    *log_patterns_orchestration.PATTERNS,
    *log_patterns_start.PATTERNS,
    *log_patterns_threads.PATTERNS,
)
