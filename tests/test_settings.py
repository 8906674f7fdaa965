"""The shape of links: what is given, else what the environment says, else what suits the fabric."""

from dataclasses import replace

import pytest

from tricoll.settings import CPU, settings_for


def test_what_is_given_comes_first_then_the_environment(monkeypatch):
    monkeypatch.setenv("TRICOLL_SLOTS", "7")
    monkeypatch.setenv("TRICOLL_LINK", "put")
    assert settings_for() == replace(CPU, slots=7, mapped=False)
    assert settings_for(slots=5, link="mapped") == replace(CPU, slots=5)


@pytest.mark.parametrize("name", ["LINK", "SLOTS", "REPRODUCIBLE"])
def test_an_empty_variable_says_nothing(monkeypatch, name):
    monkeypatch.setenv(f"TRICOLL_{name}", "")
    assert settings_for() == CPU
    assert not settings_for(base=replace(CPU, mapped=False)).mapped


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LINK", "nvlink", "link is 'nvlink'"),
        ("SLOTS", "two", "TRICOLL_SLOTS is 'two', not a number"),
        ("SLOTS", "2", "slots is 2; it must be more than window"),
        ("REPRODUCIBLE", "7", "reproducible is 7; it must be 0 or 1"),
        ("SLOT_BYTES", "100", "slot_bytes is 100"),
        ("BLOCK", "48", "block is 48"),
    ],
)
def test_nonsense_is_refused(monkeypatch, name, value, said):
    monkeypatch.setenv(f"TRICOLL_{name}", value)
    with pytest.raises(ValueError, match=said):
        settings_for()
