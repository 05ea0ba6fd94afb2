"""How much memory a launch pins, held against what it may lock: arithmetic over others' facts."""
