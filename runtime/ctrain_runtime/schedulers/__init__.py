"""Schedulers: how a launch plan becomes scripts and commands, and how their answers are read. No policy here."""
