from __future__ import annotations

from ctrain_runtime.errors import CANCELLED, ENDED, CtrainError, UsageError, exit_codes


def test_an_error_is_one_line_with_its_next_step() -> None:
    assert str(UsageError("no image is named", "Give one with --image")) == "no image is named. Give one with --image"
    assert str(UsageError("no image is named")) == "no image is named"


def test_every_kind_of_error_has_a_code_of_its_own() -> None:
    codes = [code for code, _ in exit_codes()]
    assert len(codes) == len(set(codes)) == len(CtrainError.__subclasses__()) + 1 + len(ENDED)
    assert codes == sorted(codes)


def test_codes_look_neither_like_a_programs_nor_like_a_signals() -> None:
    codes = {code for code, _ in exit_codes()} - set(ENDED)
    assert codes <= {*range(64, 85), 86, 87}  # 85 is a program's: saved and left
    assert CANCELLED == 128 + 2
