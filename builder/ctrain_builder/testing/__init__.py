"""The tests of an image: which are due, how they run, and what was recorded of them."""
