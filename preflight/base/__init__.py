"""What every command stands on: output, errors, exit codes, quoting for a shell."""
