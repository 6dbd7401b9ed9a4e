"""Writes the child pipeline of .gitlab-ci.yml: the jobs of image.yml for each image of a build plan.

ctrain build --all --unpublished --base-max-age 30 --plan --json | python .gitlab/pipeline.py > pipeline.yml
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

TEMPLATE = Path(__file__).with_name("image.yml")


def pipeline(plan: dict[str, Any]) -> dict[str, Any]:
    """The pipeline as data. A pipeline must have a job, also when there is nothing to do."""
    template: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    build, publish, promote = (template.pop(stage) for stage in template["stages"])
    jobs: dict[str, Any] = {}
    for image in plan["images"]:
        name, tag = f"{image['name']}:{image['tag']}", image["tag"]
        # A channel belongs to a name, not to a tag: dev and prod are those of the tag that images.yaml prefers.
        channels = {"DEV": "dev", "PROD": "prod"} if image["default"] else {"DEV": f"{tag}-dev", "PROD": tag}
        variables = {"IMAGE": name, "NAME": image["store_name"], **channels}
        place = f"{image['name']}-{tag}"  # names of resource groups have no colon
        jobs[f"build {name}"] = {**build, "variables": variables, "resource_group": f"build-{place}"}
        for stage, job, needed in (("publish", publish, "build"), ("promote", promote, "publish")):
            own = {"variables": variables, "resource_group": f"{stage}-{place}", "needs": [f"{needed} {name}"]}
            jobs[f"{stage} {name}"] = {**job, **own}
    nothing = {"nothing to build": {"stage": "build", "tags": build["tags"], "script": ["true"]}}
    return {**template, **(jobs or nothing)}


if __name__ == "__main__":
    json.dump(pipeline(json.load(sys.stdin)), sys.stdout, indent=2)
