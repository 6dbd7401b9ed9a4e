"""What a user layer may hold, and what is said when pip can't install beside the image. Builds: tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder.layers import user_layer

PIP = """\
Looking in indexes: https://index.example/simple
ERROR: Cannot install {who} because these package versions have conflicting dependencies.

The conflict is caused by:
{causes}

To fix this you could try to:
1. loosen the range of package versions you've specified
"""
PINNED = "    The user requested (constraint) torch===2.13.0+cpu"


@pytest.mark.parametrize(
    ("causes", "reason"),
    [
        (
            ["    The user requested torch==2.9", PINNED],
            "requirements.txt requires torch==2.9, the image has torch 2.13.0+cpu",
        ),
        (
            ["    The user requested Torch <3,>=2.14", PINNED],
            "requirements.txt requires Torch <3,>=2.14, the image has torch 2.13.0+cpu",
        ),
        (
            [
                "    vision-kit 0.27.0 depends on torch==2.12.0",
                "    vision-kit 0.26.0 depends on torch==2.11.0",
                PINNED,
            ],
            "vision-kit 0.27.0, for requirements.txt, requires torch==2.12.0, the image has torch 2.13.0+cpu",
        ),
        (
            [
                "    a 1.0 depends on numpy",
                "    a 1.0 depends on typing_extensions>=5",
                "    The user requested (constraint) typing-extensions===4.16.0",
            ],
            "a 1.0, for requirements.txt, requires typing_extensions>=5, the image has typing-extensions 4.16.0",
        ),
        (["    The user requested einops==0.8.1", "    The user requested einops==0.8.2"], ""),
    ],
)
def test_a_conflict_with_the_image_in_one_line(causes: list[str], reason: str) -> None:
    assert user_layer.conflict("requirements.txt", PIP.format(who="x", causes="\n".join(causes))) == reason


def test_another_failure_of_pip_is_no_conflict() -> None:
    log = "ERROR: No matching distribution found for nosuchpackage\n    The user requested torch\n"
    assert user_layer.conflict("requirements.txt", log) == ""


PACKAGES = "usr/local/lib/python3.11/dist-packages"


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        (f"{PACKAGES}/torch/__init__.py", "certain"),
        (f"{PACKAGES}/torch", "certain"),  # deleted
        (f"{PACKAGES}/torch-2.9.0.dist-info/METADATA", "certain"),
        ("opt/conda/lib/python3.8/site-packages/torch.py", "certain"),  # found before or after the image's: who knows
        (f"{PACKAGES}/torch_geometric/__init__.py", ""),
        (f"{PACKAGES}/torch_geometric-2.6.dist-info/METADATA", ""),
        (f"{PACKAGES}/torchaudio/__init__.py", ""),  # the image has none
        (f"{PACKAGES}/einops/torch/__init__.py", ""),
        ("usr/local/bin/mpirun", "certain"),
        ("usr/local/bin/mpirun-wrapper", ""),
        ("usr/lib/x86_64-linux-gnu/libnccl.so.2.29", "certain"),
        ("usr/local/lib/libmpi.so.40", "certain"),
        ("usr/local/lib/libmpi_cxx.so.40", "certain"),
        ("usr/local/lib/libmpifr.so.1", ""),
        (f"{PACKAGES}/nvidia/nccl/lib/libnccl.so.2", "doubtful"),  # only if the image has this very file
        (f"{PACKAGES}/kit.libs/libcudart-d0da41ae.so.11.0", "doubtful"),
        ("usr/local/cuda-12.6/lib64/x", "certain"),
        ("usr/local/cuda", "certain"),
        ("usr/local/cudatools/x", ""),
        ("opt/hpcx/ompi/bin/x", "certain"),
        ("opt/tool/lib/libtool.so", ""),
    ],
)
def test_what_a_layer_must_leave_alone(path: str, verdict: str) -> None:
    certain, doubtful = user_layer.offences([path], {"torch": "2.13.0+cpu", "numpy": "2.4.6"})
    assert {"certain": certain == [path], "doubtful": doubtful == [path], "": not certain + doubtful}[verdict]


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("r.txt", "einops\n", "python3 -m pip install --constraint {c} --requirement /mnt/source/r.txt"),
        ("s.sh", "echo hi\n", "env PIP_CONSTRAINT={c} /bin/sh -ex /mnt/source/s.sh"),
        ("s.sh", "#!/bin/bash -eu\n", "env PIP_CONSTRAINT={c} /bin/bash -eu /mnt/source/s.sh"),
        ("prepare", "#! /usr/bin/env python3\n", "env PIP_CONSTRAINT={c} /usr/bin/env python3 /mnt/source/prepare"),
    ],
)
def test_a_script_is_run_and_anything_else_is_for_pip(name: str, text: str, command: str) -> None:
    expected = command.format(c="/mnt/constraints.txt").split()
    assert user_layer.command_for(Path("/home/kim", name), text) == expected
