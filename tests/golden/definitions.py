"""What the golden definitions hold: for each image of the catalog, at each tag, its definitions as they are built.

Those that differ on arm64 are there as well."""

from __future__ import annotations

from ctrain_builder.definitions import definition, image_spec
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import MIRROR
from ctrain_runtime.base.paths import data_dir

FOLDER = "definitions"


def files() -> dict[str, str]:
    """Name of each golden file -> what it should hold. The mirror is the building machine's: it stays a placeholder."""
    found = {}
    for spec in image_spec.all_specs(data_dir("definitions")):
        amd64, arm64 = _rendered(spec, "amd64"), _rendered(spec, "arm64")
        found.update({f"{FOLDER}/{spec.file_stem}/{name}": text for name, text in amd64.items()})
        other = {name: text for name, text in arm64.items() if text != amd64[name]}
        found.update({f"{FOLDER}/{spec.file_stem}-arm64/{name}": text for name, text in other.items()})
    return found


def _rendered(spec: ImageSpec, arch: str) -> dict[str, str]:
    plan = build_plan.plan_image(spec, {}, {}, arch, lambda *_: False, lambda _: "sha256:71ab")
    return {
        f"{number}-{layer.name}.def": definition.render(
            layer.definition, {**layer.arguments, MIRROR: f"{{{{ {MIRROR} }}}}"}
        ).text
        for number, layer in enumerate(plan.layers)
    }
