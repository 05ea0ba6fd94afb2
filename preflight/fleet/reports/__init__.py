"""Files of reports to rows, one a node: reads files and standard input, and judges nothing."""
