"""What people look at of a store: its web page, and module files."""
