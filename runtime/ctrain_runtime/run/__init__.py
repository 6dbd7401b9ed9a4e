"""Orchestrates one run: prepares its directory, starts it, watches it, records it, and names the failure."""
