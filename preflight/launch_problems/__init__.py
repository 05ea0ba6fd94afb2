"""What is known to be wrong with launches: rules, and records of known-bad combinations."""
