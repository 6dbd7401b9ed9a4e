"""The command `ctrain`: the verbs of the runtime and of the builder."""

from __future__ import annotations

import sys

from ctrain_runtime.cli.main import ADMIN, IMAGES, RUNTIME_VERBS, Verb
from ctrain_runtime.cli.main import main as run_cli

BUILD_VERBS = (
    Verb("layer", IMAGES, "build or show a user layer on top of a published image", "ctrain_builder.cli.layer"),
    Verb("import", IMAGES, "make a definition, a layer or a job of what you have", "ctrain_builder.cli.import_"),
    Verb("build", IMAGES, "build images from definitions", "ctrain_builder.cli.build"),
    Verb("test", IMAGES, "test images built with --tests later", "ctrain_builder.cli.test"),
    Verb("publish", IMAGES, "publish a built image to a store", "ctrain_builder.cli.publish"),
    Verb("store", ADMIN, "manage a store: promote, roll back, retire, verify, sync", "ctrain_builder.cli.store"),
    Verb("upstream", ADMIN, "list new and moved tags of upstream base images", "ctrain_builder.cli.upstream"),
    Verb("cache", ADMIN, "show and shrink the cache of builds", "ctrain_builder.cli.cache"),
    Verb("install", ADMIN, "install ctrain for all users, upgrade it, go back", "ctrain_builder.cli.install"),
)


def main() -> int:
    return run_cli([*RUNTIME_VERBS, *BUILD_VERBS], sys.argv[1:])
