"""Container engines: their command lines, and the environment of containers."""
