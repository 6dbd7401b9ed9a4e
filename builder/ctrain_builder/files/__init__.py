"""Files that are whole or absent, their locks, their digests; trees that are opened never through links."""
