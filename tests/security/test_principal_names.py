"""Names and tokens of principals that would give access to jobs of others, or to the metrics, are refused."""

import pytest

from tidewire_server import Server
from tidewire_server.commands.configuration import ConfigurationError, configure

PLACES = ("constructor", "configure", "flag", "environment", "configuration file", "token file")
NAMES = ("anonymous", "anonymous 127.0.0.1", "anonymous ")
CASES = [
    # Spaces separate the tokens in the environment, so a name cannot contain one there.
    (place, name)
    for place in PLACES
    for name in NAMES
    if place != "environment" or " " not in name
]


def configure_token(place: str, setting: str, value: str, folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a server with a token in one of the places for tokens."""
    if place == "constructor":
        Server(**{setting: [value]})
    elif place == "configure":
        Server().configure(**{setting: [value]})
    elif place == "flag":
        configure({setting: (value,)})
    elif place == "environment":
        monkeypatch.setenv(f"TIDEWIRE_{setting.upper()}", value)
        configure({})
    elif place == "configuration file":
        (folder / "some.toml").write_text(f'{setting} = ["{value}"]')
        configure({}, folder / "some.toml")
    else:
        (folder / "tokens.txt").write_text(f"ann:open\n{value}\n")
        configure({setting.replace("tokens", "token_file"): str(folder / "tokens.txt")})


@pytest.mark.parametrize("setting", ["tokens", "operator_tokens"])
@pytest.mark.parametrize(("place", "name"), CASES)
def test_name_of_anonymous_callers_is_refused_for_a_principal(place, name, setting, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="is the name of callers without tokens") as refused:
        configure_token(place, setting, f"{name}:sesame", tmp_path, monkeypatch)
    error = str(refused.value)
    assert repr(name) in error
    assert "choose another name" in error
    assert "sesame" not in error


def test_name_that_only_begins_like_that_of_anonymous_callers_is_accepted():
    assert Server(tokens=["anonymous-looking:sesame", "anonymous"]).settings.tokens


SAME = {"tokens": ("ann:sesame", "bob:open"), "operator_tokens": ("prometheus:open",)}


def test_token_of_a_principal_is_refused_as_a_token_of_an_operator():
    with pytest.raises(ValueError, match="setting operator_tokens") as refused:
        Server(**SAME)
    assert "principal 'bob'" in str(refused.value)
    assert "use another token" in str(refused.value)
    assert "open" not in str(refused.value).replace("operator", "")
    server = Server(tokens=SAME["tokens"])
    with pytest.raises(ValueError, match="principal 'bob'"):
        server.configure(operator_tokens=SAME["operator_tokens"])


@pytest.mark.parametrize("in_files", [{"tokens"}, {"operator_tokens"}, {"tokens", "operator_tokens"}, set()])
def test_token_of_a_principal_is_refused_as_a_token_of_an_operator_wherever_the_two_are_configured(
    in_files, tmp_path, monkeypatch
):
    flags = {}
    for setting, tokens in SAME.items():
        if setting in in_files:
            (tmp_path / setting).write_text("\n".join(tokens))
            flags[setting.replace("tokens", "token_file")] = str(tmp_path / setting)
        else:
            monkeypatch.setenv(f"TIDEWIRE_{setting.upper()}", " ".join(tokens))
    with pytest.raises(ConfigurationError, match="principal 'bob'") as refused:
        configure(flags)
    assert len(str(refused.value).splitlines()) == 1
