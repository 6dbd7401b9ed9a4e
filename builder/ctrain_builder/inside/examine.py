"""Prints what is in an image as one JSON object: versions of its software, and its packages."""

from __future__ import annotations

import json

import packages
import versions

print(json.dumps({"software": versions.collect(), "packages": packages.everything()}))
