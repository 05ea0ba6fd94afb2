"""What runs the real Mooncake to measure or to rehearse. Judging a launch needs none of it."""
