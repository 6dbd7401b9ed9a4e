"""The command line of the builder, and the `ctrain` command itself: the builder stands on top of the run-time."""
