"""What a plan says about bfloat16 on this processor."""

from __future__ import annotations

import pytest

from albert_tf import processor


@pytest.mark.parametrize(
    ("flags", "precision", "expected"),
    [
        (
            "fpu avx512_bf16 amx_bf16",
            "float32",
            "float32; this processor has bfloat16 instructions (amx_bf16, avx512_bf16): --flag is "
            "faster",
        ),
        (
            "fpu avx512_bf16",
            "bfloat16",
            "bfloat16; this processor has bfloat16 instructions (avx512_bf16)",
        ),
        ("fpu avx2", "float32", "float32; this processor has no bfloat16 instructions"),
        (
            "fpu avx2",
            "bfloat16",
            "bfloat16; this processor has no bfloat16 instructions: float32 is faster",
        ),
    ],
)
def test_advice(monkeypatch, tmp_path, flags, precision, expected):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n\n")
    monkeypatch.setattr(processor, "_CPU_INFO", str(tmp_path / "cpuinfo"))
    assert processor.describe(precision, "--flag") == expected


def test_a_processor_that_cannot_be_asked_gets_no_advice(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "_CPU_INFO", str(tmp_path / "nowhere"))
    assert processor.describe("bfloat16", "--flag") == "bfloat16"
