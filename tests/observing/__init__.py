"""Tests of preflight.observing and checks.running."""
