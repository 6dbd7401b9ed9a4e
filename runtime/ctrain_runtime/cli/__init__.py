"""The command line of the runtime: one small file per verb. The only place that prints and exits."""
