"""Known-bad combinations: one TOML file a record, and what each comes to for a launch on a host.

It reads the records beside it and facts that others have read. It runs nothing and reads no host.
"""
