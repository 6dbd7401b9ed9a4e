"""Container engines: how a command is run inside an image."""
