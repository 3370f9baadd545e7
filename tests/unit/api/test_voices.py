"""Names lead to voices."""

import pytest
import torch

from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.engine.voices import VoiceBook

ANNA, NOVA = Voice("Anna", torch.zeros(192)), Voice("nova", torch.ones(192))


def test_the_first_voice_is_the_default_and_openais_names_mean_it():
    book = VoiceBook([ANNA, NOVA])
    assert book.find(None) is book.find("") is book.find("alloy") is book.find("default") is ANNA


def test_a_voice_of_ones_own_wins_over_openais_name_and_case_and_blanks_do_not_matter():
    assert VoiceBook([ANNA, NOVA]).find("  NOVA\n") is NOVA


def test_aliases_lead_to_voices_and_an_alias_to_nowhere_is_named():
    assert VoiceBook([ANNA, NOVA], {"Alloy": "nova"}).find("alloy") is NOVA
    with pytest.raises(ValueError, match="alias 'alloy' leads to 'bob', which is none of anna"):
        VoiceBook([ANNA], {"alloy": "bob"})


def test_an_unknown_name_is_no_voice_rather_than_the_default():
    assert VoiceBook([ANNA]).find("bob") is None


def test_names_lists_each_once_voices_first():
    names = VoiceBook([ANNA, NOVA]).names
    assert names[:2] == ("Anna", "nova")
    assert len({name.casefold() for name in names}) == len(names)
