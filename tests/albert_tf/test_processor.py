"""What a plan says about bfloat16 on this processor."""

from __future__ import annotations

import pytest

from albert_tf.jobs import processor

HAS = "this processor has bfloat16 instructions"
LACKS = "this processor has no bfloat16 instructions"


@pytest.mark.parametrize(
    ("flags", "precision", "advice"),
    [
        ("avx512_bf16 amx_bf16", "float32", f"{HAS} (amx_bf16, avx512_bf16): --flag is faster"),
        ("avx512_bf16", "bfloat16", f"{HAS} (avx512_bf16)"),
        ("avx2", "float32", LACKS),
        ("avx2", "bfloat16", f"{LACKS}: float32 is faster"),
    ],
)
def test_advice(monkeypatch, tmp_path, flags, precision, advice):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: fpu {flags}\n\n")
    monkeypatch.setattr(processor, "_CPU_INFO", str(tmp_path / "cpuinfo"))
    assert processor.describe(precision, "--flag") == f"{precision}; {advice}"


def test_a_processor_that_cannot_be_asked_gets_no_advice(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "_CPU_INFO", str(tmp_path / "nowhere"))
    assert processor.describe("bfloat16", "--flag") == "bfloat16"
