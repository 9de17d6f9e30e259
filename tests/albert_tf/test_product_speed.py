"""What a plan says about bfloat16 on this processor."""

from __future__ import annotations

import pytest

from albert_tf import product_speed


def test_it_measures_both_products():
    assert 0.01 < product_speed.bfloat16_speed() < 100


@pytest.mark.parametrize(
    ("speed", "precision", "expected"),
    [
        (
            1.84,
            "float32",
            "bfloat16 products are 1.8 times as fast as float32 ones (all else gains less): --flag",
        ),
        (1.84, "bfloat16", "bfloat16 products are 1.8 times as fast as float32 ones"),
        (1.04, "float32", "bfloat16 products are 1.0 times as fast as float32 ones"),
        (0.5, "bfloat16", "float32 products are 2.0 times as fast as bfloat16 ones"),
    ],
)
def test_advice(monkeypatch, speed, precision, expected):
    monkeypatch.setattr(product_speed, "bfloat16_speed", lambda: speed)
    text = product_speed.describe(precision, "--flag")
    assert text == f"{precision}; on this processor {expected}"
