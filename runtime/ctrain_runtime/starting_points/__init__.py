"""Starting points for the files that people write: commented templates, and a job proposed for a program."""
