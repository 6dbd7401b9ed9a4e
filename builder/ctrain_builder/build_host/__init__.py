"""Where the build host gets packages from, and what of it is secret."""
