"""What the rooms of fleet share: JSON to records, node sets, networks, words. Touches nothing."""
