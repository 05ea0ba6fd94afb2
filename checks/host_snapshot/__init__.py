"""A host in one file, with names and addresses replaced: reads what the checks would read."""
