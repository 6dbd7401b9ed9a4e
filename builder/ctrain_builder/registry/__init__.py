"""Registries: the HTTP client, logins, digests of tags, and images as artifacts."""
