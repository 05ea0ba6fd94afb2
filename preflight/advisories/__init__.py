"""Known-bad combinations: one TOML file a record, and what each comes to for a launch on a host."""
