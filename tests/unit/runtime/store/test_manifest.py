from __future__ import annotations

import pytest

from ctrain_runtime.store.manifest import Requires

GPUS = ("V100", "A100", "A10", "H100", "H200", "GH200", "L4", "RTX PRO 6000")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("a100", "A100"),
        ("a10", "A10"),
        ("cas_v100nv_8", "V100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("gh200", "GH200"),
        ("h200", "H200"),
        ("nvidia_rtx_pro_6000_blackwell", "RTX PRO 6000"),
        ("NVIDIA L40S", None),
        ("gpu", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_the_names_that_schedulers_and_drivers_give_it(name: str, meant: str) -> None:
    assert Requires(gpus=GPUS).matching_gpus([name]) == ((meant,) if meant else ())


def test_of_several_names_all_count_in_the_order_of_the_image() -> None:
    assert Requires(gpus=GPUS).matching_gpus(["h200", "a100", "a100"]) == ("A100", "H200")
