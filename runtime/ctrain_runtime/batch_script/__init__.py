"""Batch scripts of sbatch and qsub, read without running them: what they request, and the container that they start."""
