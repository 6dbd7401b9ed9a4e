"""What publishing costs, beside copying by hand: `publish` and `cp` + `sha256sum` + `sync` of the same file.

    python benchmarks/publish.py [--size GB] [--rounds N] [--work DIR] [--json]

Both take turns. As root it also publishes an image with one changed layer to an XFS with reflinks, and lists a store of
many versions. How to read the result: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from disks import reflink_disk

from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.store.manifest import CHECKSUM, Layer, Manifest, TestResult, checksum
from ctrain_runtime.store.store import LAYOUT_VERSION, STORE_MARKER

GB = 1_000_000_000
LAYER = 20_000_000  # bytes of the layer that changes
PUBLISH_LIMIT, WRITTEN_LIMIT = 0.75, 2.0  # times of cp + sha256sum + sync; sizes of the changed layer
VERSIONS, LIST_LIMIT = 1000, 0.3  # seconds
CHUNK = 1 << 22


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what publishing costs.")
    parser.add_argument("--size", type=float, default=2.0, metavar="GB", help="size of the image (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each (default: 3)")
    parser.add_argument("--work", default="/var/tmp", metavar="DIR", help="where to work (default: /var/tmp)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    ctrain = Path(sys.executable).with_name("ctrain")
    if args.size <= 0 or args.rounds < 1 or not shutil.which("apptainer") or not ctrain.is_file():
        parser.error("this needs apptainer, the Python that ctrain is installed for, and sizes above 0")
    if shutil.disk_usage(args.work).free < 5 * args.size * GB:
        parser.error(f"about {5 * args.size:.0f} GB are needed in {args.work}")
    folder = Path(tempfile.mkdtemp(prefix="ctrain-publish-", dir=args.work))
    try:
        result = measure(folder, int(args.size * GB), args.rounds, ctrain)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(result))
    if args.json:
        print(json.dumps(result))
    missed = result["ratio"] > PUBLISH_LIMIT or result["list_seconds"] > LIST_LIMIT
    return 1 if missed or (result["written_per_layer"] or 0) > WRITTEN_LIMIT else 0


def measure(folder: Path, size: int, rounds: int, ctrain: Path) -> dict[str, float | None]:
    """Medians. `written_per_layer` is None where no file system with reflinks can be made."""
    image, manifest = make_image(folder, size, 0)
    own, other = [], []
    for number in range(rounds):
        for turn in ("cp", "publish"):
            place = folder / "turn"
            place.mkdir()
            init_store(place / "store")
            os.sync()
            started = time.perf_counter()
            if turn == "cp":
                copy_by_hand(image, place)
            else:
                publish(image, replace(manifest, name=f"image{number}"), place / "store", "prod")
            (other if turn == "cp" else own).append(time.perf_counter() - started)
            shutil.rmtree(place)
    plain, ours = statistics.median(other), statistics.median(own)
    return {
        "size": size,
        "plain_seconds": round(plain, 2),
        "publish_seconds": round(ours, 2),
        "ratio": round(ours / plain, 2),
        "written_per_layer": changed_layer(folder, size),
        "list_seconds": round(listing(folder, ctrain), 3),
    }


def copy_by_hand(image: Path, place: Path) -> None:
    copied = place / image.name
    subprocess.run(["cp", "--reflink=never", str(image), str(copied)], check=True)
    subprocess.run(["sha256sum", str(copied)], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["sync", "--file-system", str(copied)], check=True)


def make_image(folder: Path, size: int, number: int) -> tuple[Path, Manifest]:
    """A SIF with a base of random bytes, the same each time, and a layer that `number` stands for."""
    path, parts = folder / f"{number}.sif", []
    for name, amount, seed in (("base", size - LAYER, -1), ("layer", LAYER, number)):
        part, chance = folder / f"{name}.part", random.Random(seed)
        with part.open("wb") as file:
            for done in range(0, amount, CHUNK):
                file.write(chance.randbytes(min(CHUNK, amount - done)))
        parts.append(part)
    subprocess.run(["apptainer", "sif", "new", str(path)], check=True)
    add = ["apptainer", "sif", "add", "--datatype", "4", "--partfs", "1", "--partarch", "2", "--groupid", "1"]
    layers = []
    for kind, part in zip(("2", "4"), parts):
        subprocess.run([*add, "--parttype", kind, str(path), str(part)], check=True)
        layers.append(Layer(part.stem, part.stem, part.stat().st_size, file_digest(part)))
        part.unlink()
    facts = {"name": "image", "tag": "1.0", "stack": "s", "arch": "amd64", "built": "2026-11-21T00:00:00Z"}
    tests = (TestResult("imports", True, "1.0"),)
    size = path.stat().st_size
    manifest = Manifest(
        **facts, digest=file_digest(path), size=size, layers=tuple(layers), software={}, tests=tests, tools={}
    )
    return path, manifest


def changed_layer(folder: Path, size: int) -> float | None:
    """Bytes that the disk gives to a second image whose layer differs, in sizes of that layer."""
    with reflink_disk(folder, 2 * size + 2 * GB) as place:
        if not place:
            return None
        init_store(place / "store")
        for number in (1, 2):
            image, manifest = make_image(folder, size, number)
            subprocess.run(["sync", "--file-system", str(place)], check=True)
            before = shutil.disk_usage(place).used
            publish(image, manifest, place / "store", "prod")
            subprocess.run(["sync", "--file-system", str(place)], check=True)
            written = shutil.disk_usage(place).used - before
            image.unlink()
    return round(written / LAYER, 2)


def listing(folder: Path, ctrain: Path) -> float:
    """Seconds that `ctrain images` takes for a store of many versions."""
    root = folder / "many"
    root.mkdir()
    (root / STORE_MARKER).write_text(json.dumps({"layout": LAYOUT_VERSION}))
    layers = tuple(Layer(name, "0" * 64, 1, f"sha256:{'0' * 64}") for name in ("base", "horovod", "deepspeed", "train"))
    tests = tuple(TestResult(f"test {number}", True, "1.0") for number in range(14))
    for number in range(VERSIONS):
        manifest = Manifest(
            name=f"image{number % 10}",
            tag="24.12",
            stack="hd",
            arch="amd64",
            digest=f"sha256:{number:064}",
            size=1,
            built="2026-11-21T00:00:00Z",
            layers=layers,
            software={"torch": "2.6.0", "cuda": "12.6"},
            tests=tests,
            tools={"apptainer": "1.3.6"},
            release=number + 1,
            published="2026-11-21T00:00:00Z",
            labels={f"org.ctrain.label{key}": "a value of some length" for key in range(25)},
        )
        (root / manifest.file_name).write_text("x")
        data = asdict(manifest)
        text = json.dumps({**data, CHECKSUM: checksum(json.loads(json.dumps(data)))}, indent=2)
        (root / manifest.file_name).with_suffix(".json").write_text(text + "\n")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([str(ctrain), "images", "--store", str(root)], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def table(result: dict[str, float | None]) -> str:
    written = result["written_per_layer"]
    return "\n".join(
        (
            f"{'cp + sha256sum + sync':<34}{result['plain_seconds']:>8.2f} s",
            f"{'publish':<34}{result['publish_seconds']:>8.2f} s   ratio {result['ratio']} (at most {PUBLISH_LIMIT})",
            f"{'one layer changed, reflinks':<34}"
            + ("not measured" if written is None else f"{written:>8.2f} layers written (at most {WRITTEN_LIMIT:.0f})"),
            f"{f'ctrain images, {VERSIONS} versions':<34}{result['list_seconds']:>8.3f} s (at most {LIST_LIMIT})",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
