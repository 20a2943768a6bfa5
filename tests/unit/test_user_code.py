"""The user's code in a stack, which warnings and tracebacks name."""

import json

import tidewire.client
import tidewire_server.server
from tidewire_server.user_code import is_user_code


def test_code_of_python_of_the_server_and_of_the_client_is_not_the_users():
    """In an editable installation, the packages are outside of site-packages."""
    assert is_user_code(__file__)
    for module in (json, tidewire_server.server, tidewire.client):
        assert not is_user_code(module.__file__)
