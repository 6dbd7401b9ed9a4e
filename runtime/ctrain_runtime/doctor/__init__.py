"""Checks of this installation that need only a reader's permissions and change nothing."""
