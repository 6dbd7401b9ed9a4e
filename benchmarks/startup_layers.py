"""What layers and their compression cost at the start of a container, and of a program that imports torch.

    python benchmarks/startup_layers.py [IMAGE.sif] [--repetitions N] [--work DIR] [--json]

Takes the files of an image (default: ctrain's pytorch-cpu) and packs them anew: as one partition, and as a base with
its Python packages dealt out to 1, 4 and 12 overlay partitions; and these packages with gzip and zstd at several
levels. All images take turns. As root, it also mounts the partitions by the kernel alone, as engines that are installed
set-uid root do. How to read the result: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Optional

from ctrain_builder.cache.cache_root import default_root

PARTITIONS = (1, 4, 12)
COMPRESSIONS = {
    **{f"gzip {level}": ("-comp", "gzip", "-Xcompression-level", str(level)) for level in (1, 4, 6, 9)},
    **{f"zstd {level}": ("-comp", "zstd", "-Xcompression-level", str(level)) for level in (1, 3, 9, 15, 19)},
}
LAYER = COMPRESSIONS["gzip 9"]  # what mksquashfs does unless told, and so what `apptainer build` does
PACK = ("-noappend", "-no-progress", "-quiet", "-all-root", "-no-xattrs")
# Data types, file systems, partition types and architectures of the SIF format, as `sif add` takes them.
SYSTEM, OVERLAY = "2", "4"
ARCHITECTURES = {"x86_64": "2", "aarch64": "4", "ppc64le": "6"}
SPACE = 20_000_000_000
ASK = "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"
PROGRAMS = {"start": ("true",), "import torch": ("python3", "-c", "import torch")}
COLD = 5  # at most so many runs with the image out of the page cache: each reads it from the disk


@dataclass(frozen=True)
class Packed:
    """A squashfs file, its size in bytes, and how long it took to make."""

    path: Path
    size: int
    seconds: float


@dataclass(frozen=True)
class Subject:
    """What is started: a SIF by the engine; or, where `image` is None, its partitions mounted by the kernel."""

    image: Optional[Path]
    partitions: Sequence[Packed]  # lowest first
    layers: Sequence[Packed]  # those that are reported on

    @property
    def files(self) -> Sequence[Path]:
        return [self.image] if self.image else [packed.path for packed in self.partitions]


@dataclass(frozen=True)
class Row:
    """Medians in seconds for one image; `size` and `pack` (seconds) are those of its overlay partitions."""

    image: str
    size: int
    pack: float
    warm: Mapping[str, float]
    cold: Mapping[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what layers cost at the start of a container.")
    parser.add_argument("image", nargs="?", type=Path, metavar="IMAGE.sif", help="default: pytorch-cpu in the cache")
    parser.add_argument("--repetitions", type=int, default=10, metavar="N", help="of each program (default: 10)")
    parser.add_argument("--work", default="/var/tmp", metavar="DIR", help="where to work (default: /var/tmp)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    image = args.image or next(iter((default_root() / "images").glob("pytorch-cpu_*.sif")), None)
    engine = shutil.which("apptainer") or shutil.which("singularity")
    if not image or not image.is_file() or not engine or not shutil.which("mksquashfs"):
        parser.error("this needs an image with torch (ctrain build pytorch-cpu), apptainer and mksquashfs")
    free = shutil.disk_usage(args.work).free
    if args.repetitions < 1 or free < SPACE:
        parser.error(f"at least one repetition, and {SPACE / 1e9:.0f} GB in {args.work} ({free / 1e9:.0f} GB are free)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up
    folder = Path(tempfile.mkdtemp(prefix="ctrain-startup-", dir=args.work))
    try:
        layers, compressions = measure(Bench(folder, engine), image.resolve(), args.repetitions)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table("partitions", layers), table("compression of 1 layer", compressions), sep="\n\n")
    if args.json:
        rows = {"partitions": layers, "compressions": compressions}
        print(json.dumps({kind: [asdict(row) for row in found] for kind, found in rows.items()}))
    return 0


@dataclass(frozen=True)
class Bench:
    """Packs, puts together and runs images in `folder`."""

    folder: Path
    engine: str

    def exec_argv(self, image: Path) -> list[str]:
        argv = [self.engine, "--quiet", "exec", "--cleanenv", "--no-mount", "home,cwd", "--pwd", "/"]
        return [*argv, *(["--userns"] if os.geteuid() == 0 else []), str(image)]

    def unpack(self, image: Path) -> tuple[Path, Path]:
        """The tree of an image as it is seen inside, and the folder of its Python packages, relative to it."""
        said = subprocess.run(
            [*self.exec_argv(image), "python3", "-c", ASK], check=True, capture_output=True, text=True
        )
        tree = self.folder / "tree"
        tree.mkdir()
        pack = [*self.exec_argv(image), "tar", "--one-file-system", "--create", "--exclude=./tmp/*", "."]
        # Who owns a file makes no difference here, and neither do the few that only root may read.
        with subprocess.Popen(pack, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as source:
            subprocess.run(["tar", "--extract", "--no-same-owner", "-C", str(tree)], stdin=source.stdout, check=True)
        return tree, Path(said.stdout.strip()).relative_to("/")

    def pack(self, tree: Path, name: str, options: Sequence[str]) -> Packed:
        path = self.folder / f"{name}.sqsh"
        started = time.perf_counter()
        subprocess.run(["mksquashfs", str(tree), str(path), *PACK, *options], check=True, stdout=subprocess.DEVNULL)
        return Packed(path, path.stat().st_size, time.perf_counter() - started)

    def assemble(self, name: str, system: Packed, layers: Sequence[Packed]) -> Path:
        image = self.folder / f"{name}.sif"
        subprocess.run([self.engine, "sif", "new", str(image)], check=True)
        add = [self.engine, "sif", "add", "--datatype", "4", "--partfs", "1", "--groupid", "1"]
        add += ["--partarch", ARCHITECTURES[os.uname().machine], "--parttype"]
        for kind, packed in [(SYSTEM, system), *((OVERLAY, layer) for layer in layers)]:
            subprocess.run([*add, kind, str(image), str(packed.path)], check=True)
        return image

    def seconds(self, subject: Subject, program: Sequence[str], cold: bool) -> float:
        for path in subject.files if cold else ():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with contextlib.ExitStack() as mounts:
            started = time.perf_counter()
            if subject.image:
                argv = self.exec_argv(subject.image)
            else:
                argv = ["chroot", str(mounts.enter_context(self.mounted([part.path for part in subject.partitions])))]
            subprocess.run([*argv, *program], check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - started

    @contextlib.contextmanager
    def mounted(self, partitions: Sequence[Path]) -> Iterator[Path]:
        """The partitions, lowest first, mounted over each other by the kernel, with /proc and /dev."""
        root = self.folder / "root"
        lower = [self.folder / f"lower{number}" for number in range(len(partitions))]
        overlay = ["-t", "overlay", "-o", f"ro,lowerdir={':'.join(map(str, (*reversed(lower), root)))}", "overlay"]
        mounts = [(["-t", "squashfs", "-o", "ro,loop", str(file)], to) for file, to in zip(partitions, lower)]
        mounts += [(overlay, root), (["--bind", "/proc"], root / "proc"), (["--bind", "/dev"], root / "dev")]
        with contextlib.ExitStack() as undo:
            for source, target in mounts:
                target.mkdir(exist_ok=True)
                subprocess.run(["mount", *source, str(target)], check=True)
                undo.callback(subprocess.run, ["umount", str(target)], check=True)
            yield root


def measure(bench: Bench, image: Path, repetitions: int) -> tuple[list[Row], list[Row]]:
    """The rows for the numbers of partitions, and those for the compressions."""
    say(f"unpacking {image}")
    tree, packages = bench.unpack(image)
    flat = bench.pack(tree, "flat", LAYER)
    trees = {count: deal(tree / packages, packages, count, bench.folder / f"dealt{count}") for count in PARTITIONS}
    shutil.rmtree(tree / packages)
    (tree / packages).mkdir()
    system = bench.pack(tree, "system", LAYER)

    layered = {"flat": Subject(bench.assemble("flat", flat, ()), [flat], [flat])}
    for count, parts in trees.items():
        say(f"packing {count} layers")
        layers = [bench.pack(part, f"layer{count}-{number}", LAYER) for number, part in enumerate(parts)]
        layered[f"base + {count}"] = Subject(bench.assemble(f"all{count}", system, layers), [system, *layers], layers)
    if os.geteuid() == 0:
        layered |= {f"{name}, kernel": replace(subject, image=None) for name, subject in layered.items()}
    squeezed = {}
    for name, options in COMPRESSIONS.items():
        say(f"packing with {name}")
        layer = bench.pack(trees[1][0], name.replace(" ", "-"), options)
        squeezed[name] = Subject(bench.assemble(f"of-{layer.path.stem}", system, [layer]), [system, layer], [layer])

    say("running")
    subjects = {**layered, **squeezed}
    warm, cold = run(bench, subjects, repetitions, False), run(bench, subjects, min(repetitions, COLD), True)

    def rows(group: Mapping[str, Subject]) -> list[Row]:
        sums = {
            name: (sum(part.size for part in subject.layers), sum(part.seconds for part in subject.layers))
            for name, subject in group.items()
        }
        return [Row(name, size, round(seconds, 1), warm[name], cold[name]) for name, (size, seconds) in sums.items()]

    return rows(layered), rows(squeezed)


def deal(source: Path, packages: Path, count: int, target: Path) -> list[Path]:
    """Trees that share out the entries of `source`, each at its place `packages` in its tree, by hard links.

    The largest (torch) gets a tree of its own; the others have several packages each, of very different sizes.
    """
    trees = [target / str(number) for number in range(count)]
    for tree in trees:
        (tree / packages).mkdir(parents=True)
    entries = sorted(source.iterdir(), key=lambda entry: (-weight(entry), entry.name))
    for number, entry in enumerate(entries):
        tree = trees[0] if number == 0 or count == 1 else trees[1 + number % (count - 1)]
        subprocess.run(["cp", "--archive", "--link", str(entry), str(tree / packages)], check=True)
    return trees


def weight(entry: Path) -> int:
    return sum(path.lstat().st_size for path in [entry, *entry.rglob("*")])


def run(bench: Bench, subjects: Mapping[str, Subject], repetitions: int, cold: bool) -> dict[str, dict[str, float]]:
    """Median seconds by subject and program. The subjects take turns; a first, warming round does not count."""
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(repetitions if cold else repetitions + 1):
        for name, subject in subjects.items():
            for title, program in PROGRAMS.items():
                seconds = bench.seconds(subject, program, cold)
                if cold or number:
                    times.setdefault((name, title), []).append(seconds)
    medians = {key: round(statistics.median(found), 3) for key, found in times.items()}
    return {name: {title: medians[name, title] for title in PROGRAMS} for name in subjects}


def say(what: str) -> None:
    print(f"# {what}", file=sys.stderr, flush=True)


def table(head: str, rows: Sequence[Row]) -> str:
    names = [f"{title}{when}" for when in ("", ", cold") for title in PROGRAMS]
    lines = [f"{head:<24}{'size':>9}{'pack':>9}" + "".join(f"{name:>20}" for name in names)]
    for row in rows:
        times = [*row.warm.values(), *row.cold.values()]
        lines.append(
            f"{row.image:<24}{row.size / 1e6:>6.0f} MB{row.pack:>7.1f} s" + "".join(f"{t:>18.2f} s" for t in times)
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
