"""`ctrain upstream --lock`: writes what built images have to images.lock."""

from __future__ import annotations

import argparse
import json

from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli.options import find_image
from ctrain_builder.cli.planning import Parents, detect_host, plan_images
from ctrain_builder.definitions import image_spec, lock_file
from ctrain_builder.image import lock
from ctrain_runtime.base.text import pluralize
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import UsageError


def execute(args: argparse.Namespace) -> int:
    if not args.images:
        raise UsageError("--lock needs the images that are to be locked", "As in: ctrain upstream --lock pytorch-cpu")
    definitions = image_spec.directory(args.definitions)
    specs = [find_image(definitions, text, "") for text in args.images]
    if own := [spec.name for spec in specs if spec.source_root != definitions.parent]:
        hint = f"Copy its entry to {definitions / image_spec.FILE}, then lock it there"
        raise UsageError(f"image {own[0]} is not of {definitions}", hint)
    cache, host = open_cache(args.cache), detect_host(args)
    plans, _ = plan_images(args, specs, cache, host, Parents(cache))
    locked = lock_file.read(definitions)
    lines, data = [], {}
    for plan in plans:
        title = f"{plan.spec.name}:{plan.spec.tag}"
        image = lock.make(cache, plan, find_engine(), host.mirror)
        is_new = locked.images.get(title, {}).get(plan.arch) != image
        locked = locked.with_image(title, plan.arch, image)
        pypi, deb = (sum(len(getattr(layer, kind)) for layer in image.layers.values()) for kind in ("pypi", "deb"))
        dated = f"; Debian's as of {image.snapshot}" if image.snapshot else ""
        what = f"{pluralize(pypi, 'package')} of Python, {deb} of Debian in {pluralize(len(image.layers), 'layer')}"
        lines.append(f"{title} {'is locked' if is_new else 'is locked as before'}: {what}{dated}")
        if plan.layers[0].is_from_mirror and not image.snapshot:
            lines.append(
                "  its Debian mirror is no snapshot: Debian's versions are compared after a build, and not imposed"
            )
        data[title] = {"pypi": pypi, "deb": deb, "snapshot": image.snapshot, "changed": is_new}
    path = lock_file.write(definitions, locked)
    lines.append(f"written: {path}; layers whose lock has changed are built again with the next `ctrain build`")
    print(json.dumps({"file": str(path), "images": data}, indent=2) if args.json else "\n".join(lines))
    return 0
