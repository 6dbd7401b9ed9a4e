"""The run-time: turns job + site + image + options into a launch plan, and runs it."""
