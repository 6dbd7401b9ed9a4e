"""The read side of a store: its images, their manifests, package lists, signatures and leases."""
