"""Programs that run inside an image: they import nothing of ctrain, and need Python 3.6 (make check: vermin)."""
