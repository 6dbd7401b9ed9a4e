"""Digests of tags with a memory, and images as artifacts of registries."""
