"""From a definition to a packed layer: the container it is built in, its files, its squashfs."""
