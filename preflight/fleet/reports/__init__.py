"""What ``check --json`` printed on many nodes, as rows: reads files and standard input, no host."""
