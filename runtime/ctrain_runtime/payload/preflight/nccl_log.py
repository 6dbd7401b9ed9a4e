"""The network that NCCL has chosen, by its own log (NCCL_DEBUG=INFO). Not run on GPUs here: the lines in the tests are
from public logs of NCCL 2.4 to 2.27."""

import re
from typing import Sequence

# "Using network IB" is the choice, in all versions since 2.6; the lines before it name the devices.
CHOICE = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
DEVICES = re.compile(r"NCCL INFO NET/(IB|Socket) ?: Using (.+?)(?: ?; ?OOB.*)?\s*$", re.MULTILINE)
REASON = re.compile(r"NCCL \w+ (NCCL_IB_DISABLE .+|Failed to (?:open libib|init).+|NET/.+(?:No device|fail).*)")
PROVIDER = re.compile(r"NCCL INFO NET/OFI Selected [Pp]rovider is ([\w;-]+)", re.MULTILINE)


def network(text: str) -> str:
    """The choice in a log, as "IB [0]mlx5_0:1/IB", "Socket [0]eth0:10.0.0.7<0>" or "AWS Libfabric cxi"; "" without one.

    The last choice counts: NCCL tries one network after the other.
    """
    chosen = CHOICE.findall(text)
    devices = dict(DEVICES.findall(text))
    name = chosen[-1] if chosen else next(iter(devices), "")
    provider = PROVIDER.findall(text)
    details = devices.get(name, provider[-1] if provider and name not in devices else "")
    return f"{name} {details}".strip()


def is_network(chosen: str, wanted: str) -> bool:
    """Whether NCCL's choice is the wanted network. IBext, IBext_v8 are IB by HPC-X's plugin;
    the plugin "AWS Libfabric" is called "Libfabric" in newer versions."""
    chosen, wanted = chosen.replace("AWS ", ""), wanted.replace("AWS ", "")
    return chosen == wanted or chosen.startswith((f"{wanted} ", f"{wanted}ext"))


def network_problem(text: str, wanted: str, adapters: Sequence[str]) -> str:
    """Why the choice in a log is wrong, with NCCL's reasons; "" if it is right. Without a `wanted` network, sockets are
    wrong on a node with faster `adapters`."""
    chosen = network(text)
    fits = is_network(chosen, wanted) if wanted else not (adapters and is_network(chosen, "Socket"))
    if fits:
        return ""
    expected = f"not {wanted}" if wanted else f"although {' and '.join(adapters)} could be used"
    reasons = "; ".join(dict.fromkeys(map(str.strip, REASON.findall(text))))
    remedy = "See: ctrain help network. To run all the same: --preflight warn"
    return f"NCCL uses {chosen or 'no network'}, {expected}{f' ({reasons})' if reasons else ''}. {remedy}"
