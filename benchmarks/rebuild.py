"""What a small change of a large image costs: `ctrain build` beside plain `apptainer build` of the same definition.

    python benchmarks/rebuild.py [--size GB | --quick] [--rounds N] [--work DIR] [--json]
    python benchmarks/rebuild.py [--code-change [--image NAME] [--limit SECONDS]] [--growth 1,4,16] [--json]

Makes the image of benchmarks/large_image once. Then a code file changes, and pip gets one package more, and both tools
build what changed. With --code-change, a line of examples/resnet50/train.py changes in a real image, which is in the
cache; with --growth, a line of code in images of several sizes; with both, one after the other. Run it with the Python
that ctrain is installed for. How to read the result: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from disks import reflink_disk

from ctrain_builder.cache.cache_root import CACHE_MARKER, default_root

IMAGE = "large"
GB = 1_000_000_000
SIZE, QUICK_SIZE = 3.2, 0.8  # GB
# Plain builds of SIZE may take this many times as long, at least; smaller ones in proportion. The second is for file
# systems that copy by reference.
CODE_LIMIT, CODE_LIMIT_REFLINK, PACKAGE_LIMIT = 50, 100, 10
SPACE = 10  # disk space, in sizes of the base: it and its parent, an unpacked tree, a SIF in two stages, the results
MODULES = 20
GROWTH_COUNTED = ("written", "read")  # seconds depend on what else the machine does
GROWTH_LIMIT = 1.2
RANDOM = "mkdir /opt/ballast; head -c {{ MEGABYTES }}000000 /dev/urandom > /opt/ballast/random"
ENGINE_VARIABLES = ("APPTAINER", "SINGULARITY")


class Failed(Exception):
    """A command failed; its output was shown."""


@dataclass(frozen=True)
class Cost:
    """What a command and all its children took: wall time, the bytes that they wrote into files and read, and CPU
    time (seconds), which hardly depends on what else the machine does."""

    seconds: float
    written: int
    read: int = 0
    cpu: float = 0


@dataclass(frozen=True)
class Comparison:
    """Medians of both tools for one change."""

    change: str
    file_system: str
    limit: float
    ctrain: Cost
    plain: Cost

    @property
    def ratio(self) -> float:
        return self.plain.seconds / self.ctrain.seconds


@dataclass(frozen=True)
class Bench:
    """Both tools, working in `folder`: sources/ is what they build from, cache/ is ctrain's."""

    folder: Path
    engine: str
    options: tuple[str, ...]  # of `ctrain build`
    image: str = IMAGE

    @property
    def base(self) -> Path:
        [base] = (self.folder / "cache" / "layers").glob("*.sif")
        return base

    def change_code(self) -> None:
        with (self.folder / "sources" / "code" / "module0.py").open("a") as file:
            file.write("# changed\n")

    def add_package(self) -> None:
        wheels = self.folder / "sources" / "wheels"
        write_wheel(wheels, f"package{len(list(wheels.iterdir()))}")

    def build(self) -> Cost:
        """The whole image by ctrain: layers, image, tests, manifest."""
        ctrain = Path(sys.executable).with_name("ctrain")
        argv = [str(ctrain), "build", self.image, "--definitions", "definitions", "--cache", str(self.folder / "cache")]
        return self._run([*argv, *self.options])

    def build_plainly(self, name: str, parent: Path) -> Cost:
        """One definition by the engine alone, on `parent`; makes FOLDER/NAME.sif."""
        image = self.folder / f"{name}.sif"
        image.unlink(missing_ok=True)
        argv = [self.engine, "build", *(["--fakeroot"] if os.geteuid() == 0 else [])]
        return self._run([*argv, "--build-arg", f"PARENT={parent}", str(image), f"definitions/{name}/{name}.def"])

    def _run(self, argv: Sequence[str]) -> Cost:
        env = {name: value for name, value in os.environ.items() if not name.startswith(ENGINE_VARIABLES)}
        temporary = self.folder / "tmp"
        temporary.mkdir()
        env.update({f"{name}_{use}": str(temporary) for name in ENGINE_VARIABLES for use in ("TMPDIR", "CACHEDIR")})
        log = self.folder / "last.log"
        os.sync()  # what is still to be written of earlier commands
        with log.open("wb") as out:
            started = time.perf_counter()
            process = subprocess.Popen(argv, cwd=self.folder / "sources", env=env, stdout=out, stderr=subprocess.STDOUT)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - started
            read = int(re.search(r"rchar: (\d+)", Path(f"/proc/{process.pid}/io").read_text())[1])
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        shutil.rmtree(temporary)
        if process.returncode:
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
            raise Failed(f"{Path(argv[0]).name} {argv[1]} ended with exit code {process.returncode}")
        cpu = usage.ru_utime + usage.ru_stime
        return Cost(seconds, usage.ru_oublock * 512, read, cpu)  # blocks of 512 bytes; of all children waited for


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what a small change of a large image costs.")
    parser.add_argument("--size", type=float, metavar="GB", help=f"size of the base's SIF (default: {SIZE})")
    parser.add_argument("--quick", action="store_true", help=f"a base of {QUICK_SIZE} GB, and no disk with reflinks")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="plain builds for each change (default: 1)")
    parser.add_argument("--work", default="/var/tmp", metavar="DIR", help="where to work (default: /var/tmp)")
    parser.add_argument("--mirror", metavar="URL", help="Debian mirror (default: the one of this machine's apt)")
    parser.add_argument("--code-change", action="store_true", help="change a line of code in a real image")
    parser.add_argument("--image", default="pytorch-cpu", help="the real image (default: pytorch-cpu)")
    text = "a shell command, as another build, that runs beside; it must not end before"
    parser.add_argument("--beside", default="", metavar="COMMAND", help=f"for --code-change: {text}")
    parser.add_argument("--limit", type=float, default=10, metavar="SECONDS", help="for --code-change (default: 10)")
    parser.add_argument(
        "--growth", type=gigabytes, metavar="GB,GB", help="change a line of code in images of these sizes"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    args.size = args.size or (QUICK_SIZE if args.quick else SIZE)
    engine = shutil.which("apptainer") or shutil.which("singularity")
    if not engine or not Path(sys.executable).with_name("ctrain").is_file():
        parser.error("this needs apptainer or singularity, and the Python that ctrain is installed for")
    if min(args.growth or [args.size]) <= 0 or args.rounds < 1:
        parser.error("sizes must be above 0, and --rounds at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up
    mirror = ["--build-arg", f"MIRROR={args.mirror}"] if args.mirror else []
    if args.code_change or args.growth:
        return measure_ctrain(engine, mirror, args)
    needed, free = SPACE * args.size, shutil.disk_usage(args.work).free / GB
    if free < needed:
        parser.error(f"about {needed:.0f} GB are needed in {args.work}, {free:.0f} GB are free; see --work and --size")
    folder = Path(tempfile.mkdtemp(prefix="ctrain-rebuild-", dir=args.work))
    options = ["--tag", str(round(args.size * 1000)), *mirror]
    try:
        size, comparisons = measure(Bench(folder, engine, tuple(options)), args)
    except Failed as error:
        print(f"rebuild.py: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(size, comparisons))
    if args.json:
        rows = [{**asdict(found), "ratio": round(found.ratio, 1)} for found in comparisons]
        print(json.dumps({"base_bytes": size, "rounds": args.rounds, "comparisons": rows}))
    return 0 if all(found.ratio >= found.limit for found in comparisons) else 1


def measure_ctrain(engine: str, mirror: Sequence[str], args: argparse.Namespace) -> int:
    """What --code-change and --growth ask for."""
    facts: dict[str, object] = {}
    is_good = True
    with tempfile.TemporaryDirectory(prefix="ctrain-rebuild-", dir=args.work) as work:
        try:
            if args.code_change:
                facts, is_good = code_change(Bench(Path(work), engine, tuple(mirror), args.image), args)
            if args.growth:
                more, is_flat = growth(Path(work), engine, args.growth, mirror, args.rounds)
                facts, is_good = {**facts, **more}, is_good and is_flat
        except Failed as error:
            print(f"rebuild.py: {error}", file=sys.stderr)
            return 1
    if args.json:
        print(json.dumps(facts))
    return 0 if is_good else 1


def gigabytes(text: str) -> list[float]:
    """The sizes in 1,4,16. Raises ValueError."""
    return [float(size) for size in text.split(",")]


def code_change(bench: Bench, args: argparse.Namespace) -> tuple[dict[str, object], bool]:
    """A line of the training program of a real image changes, as often as `rounds`, in a copy of sources and cache.

    The result as data, and whether it is within the limit."""
    sources, top = bench.folder / "sources", Path(__file__).parents[1]
    for name in ("definitions", "examples"):
        shutil.copytree(top / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    copy_cache(bench)
    program = sources / "examples/resnet50/train.py"
    costs = []
    with running(args.beside):
        for turn in range(args.rounds + 2):  # the first makes all tests run if they never did; the second warms caches
            say(f"a line of {program.name} changed, {turn + 1} of {args.rounds + 2}")
            with program.open("a") as file:
                file.write(f"# changed {turn}\n")
            costs.append(bench.build())
    cost = median(costs[2:])
    outcome = (bench.folder / "last.log").read_text()
    ran = re.findall(r"(?m)^test +(.*?)  +passed +\S+ s$", outcome)
    unchanged = outcome.count("passed (unchanged)")
    print(outcome)
    took = f"{cost.seconds:.1f} s (limit {args.limit:g}), {cost.cpu:.1f} s of CPU time"
    print(f"code change of {args.image}: {took}, tests run: {', '.join(ran)}")
    facts = {"image": args.image, "rounds": args.rounds, "tests_run": ran, "tests_unchanged": unchanged}
    return {"code_change": {**facts, **asdict(cost), "limit": args.limit}}, cost.seconds <= args.limit


@contextlib.contextmanager
def running(command: str) -> Iterator[None]:
    """Run a shell command ("": none) beside what is measured; raises Failed if it ends before."""
    argv = ["/bin/sh", "-c", command or "sleep infinity"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
        if process.poll() is not None:
            raise Failed(f"what was to run beside has ended: {command}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def copy_cache(bench: Bench) -> None:
    """Copy what the real cache has of the image; raises Failed if that is not all."""
    ctrain = Path(sys.executable).with_name("ctrain")
    plan = subprocess.run([ctrain, "build", bench.image, "--plan", "--json"], capture_output=True, text=True)
    [image] = json.loads(plan.stdout)["images"]
    if image["needs_build"]:
        raise Failed(f"{bench.image} is not in the cache; run: ctrain build {bench.image}")
    real = default_root()
    own = bench.folder / "cache"
    own.mkdir(mode=0o700)
    stem = f"{image['name']}_{image['tag']}-{image['stack']}"
    found = [path for layer in image["layers"] for path in (real / "layers").glob(f"{layer['key']}.*")]
    found += [path for name in ("images", "inputs", "durations") for path in (real / name).glob(f"{stem}.*")]
    for path in [real / CACHE_MARKER, *found, *(real / "facts").iterdir()]:
        target = own / path.relative_to(real)
        target.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "--reflink=auto", str(path), str(target)], check=True)


def growth(
    work: Path, engine: str, sizes: Sequence[float], mirror: Sequence[str], rounds: int
) -> tuple[dict[str, object], bool]:
    """The same change of code in images of several sizes; none may cost GROWTH_LIMIT times that of the smallest.

    The result as data, and whether it is within the limit."""
    rows = []
    for size in sorted(sizes):
        folder = work / f"{size:g}"
        folder.mkdir()
        bench = Bench(folder, engine, ("--tag", str(round(size * 1000)), *mirror))
        write_sources(folder / "sources")
        definition = folder / "sources/definitions/base/base.def"
        # Random bytes instead of what packs like a real image: packing 16 GB is not what is measured.
        definition.write_text(
            definition.read_text().replace("python3 /ballast.py {{ MEGABYTES }} /opt/ballast", RANDOM)
        )
        say(f"making a base of {size:g} GB")
        bench.build()
        costs = []
        for _ in range(rounds + 1):  # the first makes the tests run that the next need not
            bench.change_code()
            costs.append(bench.build())
        rows.append({"base_bytes": bench.base.stat().st_size, **asdict(median(costs[1:]))})
        shutil.rmtree(folder)
    ratios = {name: growth_of([row[name] for row in rows]) for name in GROWTH_COUNTED}
    for row in rows:
        counted = "".join(f"{row[name] / 1e6:>9.1f} MB {name}" for name in GROWTH_COUNTED)
        print(f"base {row['base_bytes'] / GB:6.2f} GB{row['seconds']:>8.1f} s{counted}")
    print(", ".join(f"{name}: {found:.2f} times that of the smallest" for name, found in ratios.items()))
    facts = {"growth": rows, "ratios": ratios, "limit": GROWTH_LIMIT}
    return facts, all(found <= GROWTH_LIMIT for found in ratios.values())


def growth_of(counts: Sequence[int]) -> float:
    """The largest to that of the smallest base, which is the first."""
    return max(counts) / max(1, counts[0])


def measure(bench: Bench, args: argparse.Namespace) -> tuple[int, list[Comparison]]:
    """The base's size, and one comparison for each change and file system."""
    write_sources(bench.folder / "sources")
    say("making the base")
    bench.build()
    size = bench.base.stat().st_size
    packages = bench.folder / "packages.sif"
    reflink, share, rounds = has_reflinks(bench.folder), min(1, args.size / SIZE), args.rounds
    code_limit = (CODE_LIMIT_REFLINK if reflink else CODE_LIMIT) * share
    found = [
        compare(bench, "a package added", bench.add_package, ("packages", bench.base), PACKAGE_LIMIT * share, rounds),
        compare(bench, "a file changed", bench.change_code, ("code", packages), code_limit, rounds),
    ]
    if reflink or args.quick:
        return size, found
    with reflink_disk(bench.folder, max(SPACE * size, 5 * GB)) as disk:
        if disk:
            for name in ("cache", "sources", "packages.sif"):
                shutil.move(bench.folder / name, disk / name)
            bench = replace(bench, folder=disk)
            plain = ("code", disk / "packages.sif")
            limit = CODE_LIMIT_REFLINK * share
            found.append(compare(bench, "a file changed", bench.change_code, plain, limit, rounds))
    return size, found


def compare(
    bench: Bench, change: str, apply: Callable[[], None], plain: tuple[str, Path], limit: float, rounds: int
) -> Comparison:
    """Change and build `rounds` times by the engine, and before and after each of them by ctrain."""
    file_system = "reflinks" if has_reflinks(bench.folder) else "no reflinks"
    own: list[Cost] = []
    other: list[Cost] = []
    for _ in range(rounds):
        for turn in ("ctrain", "plain", "ctrain"):
            say(f"{change}, {file_system}: {turn}")
            apply()
            if turn == "plain":
                other.append(bench.build_plainly(*plain))
            else:
                own.append(bench.build())
    return Comparison(change, file_system, limit, median(own), median(other))


def median(costs: Sequence[Cost]) -> Cost:
    seconds = statistics.median(cost.seconds for cost in costs)
    written, read = (statistics.median(getattr(cost, name) for cost in costs) for name in GROWTH_COUNTED)
    return Cost(round(seconds, 2), round(written), round(read), round(statistics.median(one.cpu for one in costs), 2))


def write_sources(folder: Path) -> None:
    """The definitions, and what they copy: some modules, and a wheel to begin with."""
    shutil.copytree(Path(__file__).parent / "large_image", folder)
    (folder / "code").mkdir()
    for number in range(MODULES):
        lines = (f"def step{line}(value):\n    return value * {line} + {number}\n\n\n" for line in range(200))
        (folder / "code" / f"module{number}.py").write_text("".join(lines))
    (folder / "wheels").mkdir()
    write_wheel(folder / "wheels", "package0")


def write_wheel(folder: Path, name: str) -> None:
    """A package of pure Python, about as large as those that people add."""
    about = f"{name}-1.0.dist-info"
    files = {f"{name}/{part}.py": f"value = {part}\n" * 500 for part in range(200)}
    files[f"{name}/__init__.py"] = ""
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: benchmark\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def has_reflinks(folder: Path) -> bool:
    """Whether the file system copies by reference."""
    source, copy = folder / "reflink", folder / "reflink.copy"
    source.write_bytes(bytes(8192))
    try:
        argv = ["cp", "--reflink=always", str(source), str(copy)]
        return subprocess.run(argv, stderr=subprocess.DEVNULL).returncode == 0
    finally:
        source.unlink()
        copy.unlink(missing_ok=True)


def say(what: str) -> None:
    print(f"# {what}", file=sys.stderr, flush=True)


def table(size: int, comparisons: Sequence[Comparison]) -> str:
    lines = [
        f"base: {size / GB:.2f} GB",
        f"{'change':<18}{'file system':<14}{'tool':<18}{'wall':>10}{'CPU':>10}{'written':>12}",
    ]
    for found in comparisons:
        for tool, cost in (("ctrain build", found.ctrain), ("apptainer build", found.plain)):
            figures = f"{cost.seconds:>8.1f} s{cost.cpu:>8.1f} s{cost.written / 1e6:>9.0f} MB"
            lines.append(f"{found.change:<18}{found.file_system:<14}{tool:<18}{figures}")
        times = found.plain.written / max(1, found.ctrain.written)
        cpu = found.plain.cpu / max(0.01, found.ctrain.cpu)
        ratio = f"ratio {found.ratio:.0f} (at least {found.limit:.3g}), of CPU time {cpu:.0f}"
        lines.append(f"{'':<32}{ratio}, of bytes written {times:.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
