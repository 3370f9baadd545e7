"""The GPU in the container is the card that the pool was sized for, or the start ends."""

from pathlib import Path

import pytest
import yaml

from cosyvoice_worker.device.card import card_mismatch
from cosyvoice_worker.device.nvml import UtilizationMeter

GIB = 1 << 30
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("card", "product", "gib"),
    [
        ("T4", "Tesla T4", 15),
        ("A10", "NVIDIA A10", 22),
        ("A10G", "NVIDIA A10G", 22),
        ("A100", "NVIDIA A100-SXM4-40GB", 39),
        ("A100", "A100-PCIE-40GB", 39),
        ("A100-80GB", "NVIDIA A100 80GB PCIe", 79),
        ("L4", "NVIDIA L4", 22),
        ("L40S", "NVIDIA L40S", 44),
        ("H100", "NVIDIA H100 80GB HBM3", 79),
        ("MyCard", "NVIDIA B200", 180),
        ("", "Tesla T4", 15),
    ],
)
def test_the_right_card_and_cards_of_the_user_pass(card, product, gib):
    assert card_mismatch(card, product, gib * GIB) is None


@pytest.mark.parametrize(
    ("card", "product", "gib"),
    [
        ("A100", "NVIDIA A10", 22),
        ("A10", "NVIDIA A10G", 22),
        ("A10G", "NVIDIA A10", 22),
        ("A10", "NVIDIA A100-SXM4-40GB", 39),
        ("A100", "NVIDIA A100-SXM4-80GB", 79),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", 39),
        ("L4", "NVIDIA L40S", 44),
        ("T4", "NVIDIA T400", 4),
    ],
)
def test_another_card_is_named_with_the_one_the_pool_says(card, product, gib):
    said = card_mismatch(card, product, gib * GIB)
    assert said is not None
    assert said.startswith(f"this is a {product} with {gib} GiB, the pool says {card}")


def test_every_gpu_of_the_catalogue_is_checked():
    catalogue = yaml.safe_load((ROOT / "operator" / "cosyvoice_operator" / "api" / "catalogue.yaml").read_text())
    unlike = {card: card_mismatch(card, "NVIDIA GeForce GT 710", 2 * GIB) for card in catalogue if card != "CPU"}
    assert len(unlike) >= 8
    assert all(unlike.values()), unlike


def test_utilisation_is_the_average_of_the_last_30_seconds_and_unknown_without_samples():
    now = 0.0
    values = iter([1.0, 0.0, 0.5, None])
    meter = UtilizationMeter(lambda: next(values), clock=lambda: now)
    assert meter.average() is None
    for now in (0.0, 10.0, 20.0, 25.0):  # noqa: B007 - the meter's clock reads it
        meter.take()
    assert meter.average() == 0.5
    now = 41.0
    assert meter.average() == 0.5
    now = 100.0
    assert meter.average() is None
