"""From layers to an image: assembled, flattened, described; its state in a cache."""
