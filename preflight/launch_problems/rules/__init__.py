"""Rules that find what in a launch is not as it seems, each with a page. They read no host."""
