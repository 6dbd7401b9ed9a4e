"""The builder: makes images from definitions and publishes them to a store."""
