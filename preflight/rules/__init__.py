"""What in a launch is not as it seems: one rule each, with a page. Pure."""
