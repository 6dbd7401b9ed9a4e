"""Reports of runs: what people look at when a run has ended, or while it goes on."""
