"""Metrics are totals of all principals, so only an operator's token gives access to them."""

import pytest

from support.reference_server import serving
from tidewire_server import Server


def status_of(server: Server, token: str | None) -> int:
    with serving(server) as peer:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        response = peer.http.get("/metrics", headers=headers)
        assert (response.status_code == 200) == ("tidewire_open_streams" in response.text)
        return response.status_code


@pytest.mark.parametrize(
    ("tokens", "operator_tokens", "sent", "status"),
    [
        (["ann:sesame"], ["prometheus:op"], "op", 200),
        (["ann:sesame"], ["prometheus:op"], "sesame", 401),
        (["ann:sesame"], ["prometheus:op"], None, 401),
        (["ann:sesame"], [], "sesame", 403),
        (["ann:sesame"], [], None, 403),
        ([], ["prometheus:op"], "op", 200),
        ([], ["prometheus:op"], None, 401),
        ([], [], None, 200),
    ],
)
def test_metrics_need_the_token_of_an_operator(tokens, operator_tokens, sent, status):
    assert status_of(Server(tokens=tokens, operator_tokens=operator_tokens), sent) == status


def test_token_of_an_operator_gives_no_access_to_jobs():
    server = Server(tokens=["ann:sesame"], operator_tokens=["prometheus:op"])
    with serving(server, authorization="Bearer op") as peer:
        for path in ("/v1", "/v1/jobs"):
            assert peer.http.get(path).status_code == 401


def test_rejection_names_the_missing_setting():
    with serving(Server(tokens=["sesame"]), authorization="Bearer sesame") as peer:
        assert "--operator-token-file" in peer.http.get("/metrics").json()["detail"]
