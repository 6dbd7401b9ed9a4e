"""Lines as NCCL writes them, from public logs; it was not run here."""

# ruff: noqa: E501  # lines are as NCCL wrote them

from __future__ import annotations

import pytest

from ctrain_runtime.payload.preflight.nccl_log import is_network, network, network_problem

# NVIDIA/nccl-tests#185: NCCL 2.19.3, RoCE
ROCE = """\
dgxh100-4:460770:460770 [0] NCCL INFO Bootstrap : Using enp220s0np0:11.1.128.136<0>
dgxh100-4:460770:460770 [0] NCCL INFO cudaDriverVersion 12000
NCCL version 2.19.3+cuda12.3
dgxh100-4:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB enp220s0np0:11.1.128.136<0>
dgxh100-4:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
dgxh100-4:460770:460842 [0] NCCL INFO Using network IB
"""
# NVIDIA/nccl#1925: NCCL 2.28
IB = """\
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.25.30.42<0>
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Initialized NET plugin IB
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Using network IB
"""
# NVIDIA/nccl#1053: the loopback interface, by NCCL_SOCKET_IFNAME
LOOPBACK = """\
axa:3048391:3048566 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
axa:3048391:3048566 [0] NCCL INFO NCCL_SOCKET_IFNAME set to lo
axa:3048391:3048566 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
axa:3048391:3048566 [0] NCCL INFO Using network Socket
"""
# aws/aws-k8s-tester#454: the plugin fails, and NCCL goes on with sockets
FALLBACK = """\
bert-mpi-training-worker-0:21:570 [0] NCCL INFO NET/OFI Using transport protocol SENDRECV
bert-mpi-training-worker-0:21:570 [0] nccl_net_ofi_create_plugin:257 NCCL WARN NET/OFI aws-ofi-nccl initialization failed
bert-mpi-training-worker-0:21:570 [0] NCCL INFO NET/IB : No device found.
bert-mpi-training-worker-0:21:570 [0] NCCL INFO NET/Socket : Using [0]eth0:192.168.29.226<0>
bert-mpi-training-worker-0:21:570 [0] NCCL INFO Using non-device net plugin version 0
bert-mpi-training-worker-0:21:570 [0] NCCL INFO Using network Socket
"""
# A tutorial of AWS, NCCL 2.12; and one with a newer plugin, which has another name
EFA = """\
test-nccl-efa-worker-0:21:21 [0] NCCL INFO NET/OFI Using aws-ofi-nccl 1.5.0aws
test-nccl-efa-worker-0:21:21 [0] NCCL INFO NET/OFI Selected Provider is efa (found 1 nics)
test-nccl-efa-worker-0:21:21 [0] NCCL INFO Using network AWS Libfabric
"""
NEW_EFA = """\
nccl-trainjob-node-0-0:172:172 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v11)
nccl-trainjob-node-0-0:172:172 [0] NCCL INFO Using network Libfabric
nccl-trainjob-node-0-0:172:172 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 3 nics)
"""
# An adapter without a port that works: NCCL 2.27 tries InfiniBand first
NO_PORT = """\
VM-16-64-ubuntu:28471:28471 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:172.17.16.64<0>
VM-16-64-ubuntu:28471:28471 [0] NCCL INFO Failed to initialize NET plugin IB
VM-16-64-ubuntu:28471:28471 [0] NCCL INFO NET/Socket : Using [0]eth0:172.17.16.64<0>
VM-16-64-ubuntu:28471:28471 [0] NCCL INFO Initialized NET plugin Socket
VM-16-64-ubuntu:28471:28471 [0] NCCL INFO Using network Socket
"""
# ROCm/ROCm#2988: RCCL 2.18, in an image without libibverbs
RCCL = """\
deep-visionscaper3:38629:38635 [1] NCCL INFO Failed to open libibverbs.so[.1]
deep-visionscaper3:38629:38635 [1] NCCL INFO NET/Socket : Using [0]enp37s0f1:192.168.178.85<0>
deep-visionscaper3:38629:38635 [1] NCCL INFO Using network Socket
"""
# NVIDIA/nccl#226: NCCL 2.4 does not say what it has chosen
OLD = """\
ip-172-31-10-182:45407:45407 [0] NCCL INFO NET/Socket : Using [0]ens3:172.31.10.182<0>
ip-172-31-10-182:45407:45407 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so).
ip-172-31-10-182:45407:45407 [0] NCCL INFO NET/IB : No device found.
"""


@pytest.mark.parametrize(
    ("log", "chosen"),
    [
        (ROCE, "IB [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]"),
        (IB, "IB [0]mlx5_0:1/IB [RO]"),
        (LOOPBACK, "Socket [0]lo:127.0.0.1<0>"),
        (FALLBACK, "Socket [0]eth0:192.168.29.226<0>"),
        (EFA, "AWS Libfabric efa"),
        (NEW_EFA, "Libfabric efa"),
        (NO_PORT, "Socket [0]eth0:172.17.16.64<0>"),
        (RCCL, "Socket [0]enp37s0f1:192.168.178.85<0>"),
        (OLD, "Socket [0]ens3:172.31.10.182<0>"),
        ("", ""),
    ],
)
def test_what_nccl_has_chosen(log: str, chosen: str) -> None:
    assert network(log) == chosen


@pytest.mark.parametrize(
    ("log", "wanted", "is_it"),
    [
        (ROCE, "IB", True),
        (ROCE.replace("network IB", "network IBext_v8"), "IB", True),
        (FALLBACK, "IB", False),
        (FALLBACK, "Socket", True),
        (EFA, "AWS Libfabric", True),
        (NEW_EFA, "AWS Libfabric", True),
        (EFA, "AWS Libfabric cxi", False),  # another provider of libfabric
        (EFA.replace("is efa (found 1 nics)", "is cxi"), "AWS Libfabric cxi", True),
        ("", "IB", False),
    ],
)
def test_whether_that_is_the_network_of_the_site(log: str, wanted: str, is_it: bool) -> None:
    assert is_network(network(log), wanted) == is_it


@pytest.mark.parametrize(
    ("log", "wanted", "adapters", "problem"),
    [
        (IB, "", ["mlx5_0"], ""),
        (EFA, "", ["rdmap0s6"], ""),
        (RCCL, "", [], ""),
        ("", "", ["mlx5_0"], ""),  # not known
        (FALLBACK, "Socket", ["mlx5_0"], ""),  # as the site wants
        (RCCL, "", ["mlx5_0"], "although mlx5_0 could be used (Failed to open libibverbs.so[.1])"),
        (
            LOOPBACK,
            "",
            ["cxi0", "cxi1"],
            "although cxi0 and cxi1 could be used (NCCL_IB_DISABLE set by environment to 1.)",
        ),
        (NO_PORT, "IB", [], "not IB (Failed to initialize NET plugin IB)"),
        (OLD, "IB", ["mlx5_0"], "not IB (NET/IB : No device found.)"),
        (EFA, "AWS Libfabric cxi", [], "not AWS Libfabric cxi"),
    ],
)
def test_what_is_wrong_with_the_choice(log: str, wanted: str, adapters: list[str], problem: str) -> None:
    found = network_problem(log, wanted, adapters)
    remedy = "See: ctrain help network. To run all the same: --preflight warn"
    assert found == (f"NCCL uses {network(log)}, {problem}. {remedy}" if problem else "")
