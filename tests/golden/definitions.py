"""What the golden definitions hold: for each image of the catalog, at each tag, its definitions as they are built."""

from __future__ import annotations

from ctrain_builder import build_plan, definition, image_spec
from ctrain_builder.build_plan import MIRROR
from ctrain_runtime.paths import data_dir

FOLDER = "definitions"


def files() -> dict[str, str]:
    """Name of each golden file -> what it should hold. The mirror is the building machine's: it stays a placeholder."""
    found = {}
    for spec in image_spec.all_specs(data_dir("definitions")):
        plan = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: False, lambda _: "sha256:71ab")
        for number, layer in enumerate(plan.layers):
            rendered = definition.render(layer.definition, {**layer.arguments, MIRROR: f"{{{{ {MIRROR} }}}}"})
            found[f"{FOLDER}/{spec.file_stem}/{number}-{layer.name}.def"] = rendered.text
    return found
