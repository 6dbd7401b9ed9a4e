"""What a node can check by itself: the address that the back end will use, its network adapters, and its GPUs."""

import fcntl
import os
import socket
import struct
import subprocess
from pathlib import Path
from typing import AbstractSet, List, Tuple

SIOCGIFADDR = 0x8915  # netdevice(7)
VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
# Names that all drivers know: since 535 they are aliases of clocks_event_reasons (nvidia-smi --help-query-gpu).
SLOWDOWNS = "clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.sw_thermal_slowdown"
GPU_QUERY = f"index,memory.used,memory.total,ecc.errors.uncorrected.volatile.total,{SLOWDOWNS}"
GPU_SECONDS = 20  # for nvidia-smi, which starts each GPU if it is not in persistence mode
SYS_CLASS = Path("/sys/class")
SLINGSHOT_LINKS = ("device/port/link", "device/port/0/link/state")  # of an adapter: "up" or "down" (HPE's cxi_stat.c)
PCI_DEVICES = Path("/sys/bus/pci/devices")
MEMORY_IN_USE = 0.1  # of a GPU's memory: more than that belongs to a program


def own_address(backend: str, connected: str) -> Tuple[str, str]:
    """The address that the back end will use on this node, and where it is from. Raises OSError without one.

    Without a variable, gloo uses the address of the host name (torch, ProcessGroupGloo::createDefaultDevice). What NCCL
    would choose is not known here: the address that is `connected` to the first node stands for it; on that node itself
    it is "", since its name may mean a loopback address there (Debian's /etc/hosts), until the others have connected.
    """
    variable = VARIABLES[backend]
    wanted = os.environ.get(variable, "")
    if not wanted and backend == "gloo":
        return socket.gethostbyname(socket.gethostname()), f"its host name's; {variable} chooses another"
    if not wanted:
        return "" if connected.startswith("127.") else connected, f"its route's; {variable} chooses another"
    for _, name in socket.if_nameindex():
        if matches(name, wanted, backend):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                try:
                    answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("256s", name.encode()))
                    return socket.inet_ntoa(answer[20:24]), f"interface {name} of {variable}"
                except OSError:
                    continue  # an interface without an IPv4 address
    raise OSError(f"no network interface with an address matches {variable}={wanted}")


def matches(interface: str, wanted: str, backend: str) -> bool:
    """Whether a list of interfaces has this one: for gloo names; for NCCL prefixes, of which "^" excludes and "=" is
    exact (NCCL's user guide, NCCL_SOCKET_IFNAME)."""
    if backend == "gloo":
        return interface in wanted.split(",")
    names = wanted.lstrip("^=").split(",")
    exact = wanted.lstrip("^").startswith("=")
    return any(interface == name if exact else interface.startswith(name) for name in names) != wanted.startswith("^")


def fast_adapters(root: Path = SYS_CLASS) -> List[str]:
    """This node's adapters that are up and faster than sockets: InfiniBand (EFA, Omni-Path) and Slingshot; none if
    NCCL_NET (NCCL's user guide) asks for sockets. Ethernet adapters have RoCE whether or not the network can carry it.
    """
    if os.environ.get("NCCL_NET", "").lower() == "socket":
        return []
    ports = [file.parent for file in sorted(root.glob("infiniband/*/ports/*/state")) if "ACTIVE" in file.read_text()]
    active = [port.parts[-3] for port in ports if "Ethernet" not in (port / "link_layer").read_text()]
    links = [
        file for name in SLINGSHOT_LINKS for file in sorted(root.glob(f"cxi/*/{name}")) if "up" in file.read_text()
    ]
    return active + [file.relative_to(root).parts[1] for file in links]


def cores_near(gpu: str, cores: AbstractSet[int], devices: Path = PCI_DEVICES) -> str:
    """The cores next to a GPU, named by its PCI address, if none of `cores` is one of them; "" if any is, or if the
    kernel does not tell (its ABI/testing/sysfs-bus-pci, local_cpulist: as in 0-15,32-47)."""
    try:
        near = (devices / gpu / "local_cpulist").read_text().strip()
    except OSError:
        return ""
    ranges = (part.partition("-") for part in near.split(",") if part)
    known = {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}
    return near if known and not known & cores else ""


def gpu_problems(planned: int) -> List[str]:
    """What nvidia-smi shows of the job's GPUs on this node with which no program should start."""
    if not planned:
        return []
    ours = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    argv = ["nvidia-smi", f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits", *([f"--id={ours}"] * bool(ours))]
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=GPU_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"nvidia-smi does not answer: {error}"]
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        return [f"nvidia-smi: {(text.strip() or 'no output').splitlines()[0]}"]
    return read_gpus(text, planned)


def read_gpus(answer: str, planned: int) -> List[str]:
    """The problems in nvidia-smi's answer to GPU_QUERY. What a GPU does not report ("[N/A]") is none."""
    rows = [[word.strip() for word in line.split(",")] for line in answer.splitlines() if line.strip()]
    problems = [f"{len(rows)} of {planned} GPUs are visible"] if len(rows) < planned else []
    for index, used, total, ecc, by_hardware, by_heat in rows:
        if ecc.isdigit() and int(ecc):
            problems.append(f"GPU {index} has {ecc} uncorrected ECC errors")
        if by_hardware == "Active":
            problems.append(f"GPU {index} is slowed down by its hardware (heat or power)")
        elif by_heat == "Active":
            problems.append(f"GPU {index} is slowed down by its driver (heat)")
        if used.isdigit() and total.isdigit() and int(used) > MEMORY_IN_USE * int(total):
            problems.append(f"GPU {index} has {used} of {total} MiB in use")
    return problems
