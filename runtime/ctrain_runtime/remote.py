"""What a reference means now, by its registry."""

from __future__ import annotations

import platform

from ctrain_runtime.errors import RegistryError
from ctrain_runtime.pull import Meaning, check_reference
from ctrain_runtime.registry.client import RegistryClient, parse
from ctrain_runtime.registry.http_client import Unreachable

TIMEOUT_SECONDS = 5
_SIF = "application/vnd.sylabs.sif.layer.v1.sif"  # as `apptainer push` labels the file


def resolve(reference: str) -> Meaning:
    """Ask the registry of `reference`, with the engine's logins.

    Raises UsageError, ConfigError for logins that cannot be read, RegistryError if the registry refuses, and its
    subclass Unreachable if it cannot be asked, as libraries never can.
    """
    check_reference(reference)
    scheme, _, address = reference.partition("://")
    if scheme == "library":
        raise Unreachable("ctrain cannot ask a library")
    named = parse(address)
    # Without pauses between tries: a run that has its image must not wait for a registry, and else the engine tries.
    digest, manifest = RegistryClient(timeout=TIMEOUT_SECONDS, pause=lambda _: None).manifest(named)
    name = digest.replace(":", "-")
    if scheme == "docker":
        return Meaning(digest, f"oci-{name}-{platform.machine()}.sif", f"docker://{named.name}@{digest}")
    layers = manifest.get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == _SIF:
            file = str(layer.get("digest"))
            return Meaning(file, f"{file.replace(':', '-')}.sif", reference)
    raise RegistryError(f"{reference} is not a SIF file", f"For an image of layers: docker://{named}")
