"""From layers to an image: assembled, tested, described."""
