"""Wrong settings of `Server`: one line that names the setting and what it accepts, and hides secrets."""

import pytest

from tidewire_server import Server
from tidewire_server.settings import Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_queue": 3}, "unknown setting 'max_queue'; did you mean 'max_queue_size'?"),
        ({"colour": 3}, "unknown setting 'colour'; `tidewire serve --show-config` lists all settings"),
        ({"heartbeat": "often"}, "setting heartbeat='often': must be a number from 0.001 to 300"),
        ({"state_ttl": 1e12}, "setting state_ttl=1000000000000.0: must be a number from 0 to 1e+10"),
        ({"max_threads": 0}, "setting max_threads=0: must be a whole number of at least 1"),
        ({"default_concurrency_limit": 0}, "must be a whole number of at least 1, or none"),
        ({"root_path": "ai"}, "setting root_path='ai': must be a string like"),
        ({"allowed_hosts": ["a b"]}, "setting allowed_hosts=['a b']: 'a b' is neither a host name"),
        ({"cors_origins": ["app.example"]}, "'app.example' is neither an origin such as https://"),
        ({"max_threads": 0, "max_queue": 3}, "max_threads=0: must be a whole number of at least 1\nunknown"),
    ],
)
def test_wrong_setting_is_refused_in_one_line(settings, message):
    for make in (lambda: Server(**settings), lambda: Server().configure(**settings)):
        with pytest.raises(ValueError) as caught:
            make()
        assert message in str(caught.value)
        assert "pydantic" not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("settings", [{"tokens": ["sesame 4711"]}, {"stream_token_secret": "sesame"}])
def test_message_about_a_secret_does_not_contain_it(settings):
    with pytest.raises(ValueError, match="^setting (tokens|stream_token_secret): ") as caught:
        Server(settings=Settings(max_threads=2), **settings)
    assert "sesame" not in str(caught.value)
