"""Known-bad combinations: one JSON file a record, and what each comes to for a launch on a host."""
