"""The command line of the run-time: one small file a verb. The only place that prints and exits."""
