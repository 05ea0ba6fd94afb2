"""What was understood of a launch, by the very records that ``check`` judges. It judges nothing."""
