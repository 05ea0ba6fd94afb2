"""Nodes asked through Slurm: ``fleet run``. Starts sinfo and srun; writes no file."""
