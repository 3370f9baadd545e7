"""From streams and a card to workers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.desired.replicas import replicas_to_set
from cosyvoice_operator.plan import CHILD_NAME_MAX, child_name
from tests.unit.operator.builders import planned, pool


@pytest.mark.parametrize(
    ("card", "streams", "workers"),
    [
        ("T4", (50, 400), (1, 8)),
        ("T4", (51, 401), (2, 9)),
        ("A10", (1, 301), (1, 3)),
        ("A100", (400, 800), (1, 2)),
        ("CPU", (1, 25), (1, 3)),
    ],
)
def test_workers_are_streams_over_what_a_card_carries_rounded_up(
    card: str, streams: tuple[int, int], workers: tuple[int, int]
) -> None:
    plan = planned(pools=[pool(card=card, concurrency={"min": streams[0], "max": streams[1]})])
    assert (plan.pools[0].min_workers, plan.pools[0].max_workers) == workers
    assert plan.pools[0].streams_from == "Catalogue"


def test_streams_per_worker_of_the_pool_win_over_the_card() -> None:
    plan = planned(pools=[pool(streamsPerWorker=20)])
    assert (plan.pools[0].max_workers, plan.pools[0].streams_from) == (20, "Spec")


def test_workers_can_be_said_outright() -> None:
    plan = planned(pools=[{"name": "t4", "card": "T4", "workers": {"min": 2, "max": 3}}])
    assert (plan.pools[0].min_workers, plan.pools[0].max_workers) == (2, 3)


def test_an_unknown_card_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SpecError) as refused:
        planned(pools=[pool(), pool(name="b", card="V100")])
    assert refused.value.reason == "UnknownCard"
    assert "spec.pools[1].card: 'V100' is not in the card catalogue" in refused.value.message
    assert "A10, A100, A100-80GB" in refused.value.message


def test_a_precision_that_the_card_has_not_is_refused() -> None:
    with pytest.raises(SpecError) as refused:
        planned(engine={"precision": "BF16"})
    assert refused.value.reason == "UnsupportedPrecision"
    assert "'BF16'" in refused.value.message
    assert "FP16, FP32" in refused.value.message


def test_a_card_without_a_gpu_cannot_be_asked_for_one() -> None:
    with pytest.raises(SpecError, match=r"spec\.pools\[0\]\.gpuResourceName"):
        planned(pools=[pool(card="CPU", gpuResourceName="nvidia.com/gpu")])


def test_an_administrator_changes_a_row_and_adds_one() -> None:
    mine = {"streamsPerWorker": 7, "source": "measured", "imageVariant": "cpu", "precisions": ["FP32"]}
    rows = {"T4": {"streamsPerWorker": 30}, "Mine": {**mine, "resources": {}, "startupSeconds": 60}}
    plan = planned(settings=Settings(cards=rows), pools=[pool(), pool(name="mine", card="Mine")])
    assert [pool.streams_per_worker for pool in plan.pools] == [30, 7]
    assert plan.pools[0].precision == "FP16", "what the row does not say stays as it was"


def test_a_mistake_in_a_row_is_answered_with_row_and_field() -> None:
    with pytest.raises(SpecError, match=r"catalogue\.cards\.T4\.streamPerWorker: unknown field"):
        _ = Settings(cards={"T4": {"streamPerWorker": 30}}).catalogue


def test_a_10_is_not_asked_for_by_the_labels_of_an_a100_or_an_a10g() -> None:
    """Exact values, and no value in two rows: else a pool would land on another card."""
    rows = Settings().catalogue.cards
    seen: dict[tuple[tuple[str, str], ...], str] = {}
    for name, card in rows.items():
        for alternative in card.nodes:
            keys = sorted(alternative.labels)
            for value in alternative.labels[keys[-1]]:
                other = [(key, alternative.labels[key][0]) for key in keys[:-1]]
                combination = (*other, (keys[-1], value))
                assert combination not in seen, f"{combination} is in {seen[combination]} and {name}"
                seen[combination] = name


_LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)


@given(_LABEL, st.from_regex(r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True))
def test_names_of_children_are_legal(service: str, pool: str) -> None:
    name = child_name(service, pool)
    assert len(name) <= CHILD_NAME_MAX
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert name == child_name(service, pool)


def test_names_of_children_do_not_collide() -> None:
    assert child_name("a-b", "c") != child_name("a", "b-c")
    assert child_name("a" * 40, "x" * 20) != child_name("a" * 40, "x" * 19 + "y")


@pytest.mark.parametrize(
    ("autoscaled", "new", "current", "wanted"),
    [
        (True, True, 1, 2),  # starts with the minimum
        (True, False, 1, None),  # the autoscaler's from then on
        (True, False, 9, None),
        (False, True, 1, 2),
        (False, False, 1, 2),  # below the minimum
        (False, False, 3, None),  # scaled by hand
        (False, False, 9, 4),  # above the maximum
    ],
)
def test_who_sets_the_number_of_workers(autoscaled: bool, new: bool, current: int, wanted: int | None) -> None:
    plan = planned(pools=[{"name": "t4", "card": "T4", "workers": {"min": 2, "max": 4}}])
    assert replicas_to_set(plan.pools[0], autoscaled, new=new, current=current) == wanted
