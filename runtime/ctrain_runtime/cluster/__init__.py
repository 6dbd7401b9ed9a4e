"""What is true here and now: of the scheduler's cluster, of this machine, of the engine."""
