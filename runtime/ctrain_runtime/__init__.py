"""The runtime: turns job, site, image and options into a launch plan, and runs it."""
