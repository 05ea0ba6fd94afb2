"""What every topic stands on: Unknown, needs, findings, units; roots, which alone read and call."""
