"""The cache of builds: where it is, what it keeps, how much space it takes, and what leaves it."""
