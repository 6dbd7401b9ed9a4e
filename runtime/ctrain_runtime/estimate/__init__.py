"""Estimates what training a transformer will take, and which layout is best. Pure; docs/estimate.md."""
