"""What is wrong here: looks that need nothing but a reader's rights, and change nothing."""
