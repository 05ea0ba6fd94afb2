"""Limits of processes: memlock, open files, threads, and what container runtimes hand out.

Facts and calls read /proc, cgroups and unit files; the checks are pure.
"""
