"""Tests of preflight.live_servers and checks.running_processes."""
