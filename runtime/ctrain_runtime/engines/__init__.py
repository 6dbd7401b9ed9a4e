"""Container engines: how a command is run inside an image, and what of the host it sees."""
