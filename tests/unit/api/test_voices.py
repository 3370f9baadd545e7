"""Names lead to voices."""

import torch

from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.engine.voices import KnownVoice, VoiceBook

ANNA, NOVA = (KnownVoice(name, "model", Voice(name, torch.zeros(192))) for name in ("Anna", "nova"))


def test_the_first_voice_is_the_default_and_openais_names_mean_it():
    book = VoiceBook([ANNA, NOVA])
    assert book.find(None) is book.find("") is book.find("alloy") is book.find("default") is ANNA


def test_a_voice_or_an_alias_called_default_is_the_default():
    default = KnownVoice("Default", "preset")
    assert VoiceBook([ANNA, default]).find(None) is VoiceBook([ANNA, default]).find("alloy") is default
    book = VoiceBook([ANNA, NOVA], {"default": "Nova"})
    assert book.find(None) is book.find("default") is book.find("alloy") is NOVA


def test_a_voice_of_ones_own_wins_over_openais_name_and_case_and_blanks_do_not_matter():
    assert VoiceBook([ANNA, NOVA]).find("  NOVA\n") is NOVA


def test_of_voices_with_one_name_the_first_counts():
    service = KnownVoice("anna", "preset")
    assert VoiceBook([service, ANNA]).find("Anna") is service


def test_aliases_lead_to_voices_and_one_that_leads_nowhere_is_no_name():
    book = VoiceBook([ANNA, NOVA], {"Alloy": "nova", "Bob": "robert"})
    assert book.find("alloy") is NOVA
    assert book.find("bob") is None
    assert "bob" not in book.names


def test_an_unknown_name_is_no_voice_rather_than_the_default():
    assert VoiceBook([ANNA]).find("bob") is None


def test_names_lists_each_once_voices_first():
    names = VoiceBook([ANNA, NOVA]).names
    assert names[:2] == ("Anna", "nova")
    assert len({name.casefold() for name in names}) == len(names)


def test_a_name_is_free_until_a_voice_or_an_alias_has_it():
    book = VoiceBook([ANNA], {"echo": "anna"})
    assert [book.source(name) for name in (" ANNA", "Echo", "default", "alloy", "bob")] == [
        *("model", "alias", "alias", "", "")
    ]
