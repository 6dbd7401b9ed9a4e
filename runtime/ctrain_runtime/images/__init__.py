"""Images to run: of a store, of a file, of a registry; whether they may run here; how they are described."""
