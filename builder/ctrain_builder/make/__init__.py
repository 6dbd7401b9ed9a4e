"""Makes layers, puts them together, tests and describes the result. The only part that starts programs."""
