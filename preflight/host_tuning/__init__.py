"""What to set: the plan, every dialect, apply and undo. Apply and undo alone change the machine."""
