"""What a reference means now, by its registry or library."""

from __future__ import annotations

import platform
import re

from ctrain_runtime.errors import RegistryError
from ctrain_runtime.images.image import OCI_ARCH
from ctrain_runtime.images.pull import ResolvedReference, check_reference
from ctrain_runtime.registry.client import RegistryClient, parse
from ctrain_runtime.registry.http_client import HttpClient, server

TIMEOUT_SECONDS = 5
_SIF = "application/vnd.sylabs.sif.layer.v1.sif"  # as `apptainer push` labels the file


def resolve(reference: str) -> ResolvedReference:
    """Ask the registry of `reference`, with the engine's logins.

    Raises UsageError, ConfigError for logins that cannot be read, RegistryError if the registry refuses, and its
    subclass Unreachable if it cannot be asked.
    """
    check_reference(reference)
    scheme, _, address = reference.partition("://")
    if scheme == "library":
        return _file(_library_digest(address), reference)
    named = parse(address)
    # Without pauses between tries: a run that has its image must not wait for a registry, and else the engine tries.
    digest, manifest = RegistryClient(timeout=TIMEOUT_SECONDS, pause=lambda _: None).manifest(named)
    name = digest.replace(":", "-")
    if scheme == "docker":
        return ResolvedReference(digest, f"oci-{name}-{platform.machine()}.sif", f"docker://{named.name}@{digest}")
    layers = manifest.get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == _SIF:
            return _file(str(layer.get("digest")), reference)
    raise RegistryError(f"{reference} is not a SIF file", f"For an image of layers: docker://{named}")


def _file(digest: str, reference: str) -> ResolvedReference:
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):  # it becomes the name of a file
        raise RegistryError(
            f"{reference} is announced without its SHA-256", "Report it to the administrators of its server"
        )
    return ResolvedReference(digest, f"{digest.replace(':', '-')}.sif", reference)


def _library_digest(address: str) -> str:
    """The digest of the file that HOST/ENTITY/COLLECTION/NAME[:TAG] means on this architecture, asked without a login,
    as engines ask a library that a reference names.

    Source: /v1/images/{ref} of the Sylabs Container Library API 1.0 (openapi.yml of scs-library-client).
    """
    where, _, name = address.partition("/")
    name, arch = name if ":" in name else f"{name}:latest", OCI_ARCH.get(platform.machine(), platform.machine())
    web = HttpClient(TIMEOUT_SECONDS, pause=lambda _: None)
    answer = web.fetch(f"{server(where)}/v1/images/{name}?arch={arch}", {})
    if answer.status in (401, 403, 404):
        hint = "Check the spelling. Pull a private one with the engine, and use the file: --image ./FILE"
        raise RegistryError(f"{where} has no public image {name} for {arch}", hint)
    image = answer.data().get("data")
    return str(image.get("hash") if isinstance(image, dict) else "").replace(".", ":")
