"""What a launch is, and every command about it. It imports checks/, never the reverse."""
