"""Identity of anonymous callers, and who may use a job."""

import pytest

from tidewire_server.principals import ANONYMOUS, anonymous_at, client_address, may_use


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "unknown"),
        ("10.0.0.1:80", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
        ("x" * 100_000, "unknown"),
    ],
)
def test_a_client_is_counted_by_its_ipv4_address_or_ipv6_network(host, address):
    assert client_address(host) == address


def test_only_anonymous_callers_use_each_others_jobs():
    here, there = anonymous_at("10.0.0.1"), anonymous_at("10.0.0.2")
    assert here != there
    assert may_use(here, there)
    assert may_use(here, ANONYMOUS)
    assert may_use(ANONYMOUS, here)
    assert may_use("ann", "ann")
    assert not may_use("ann", "bob")
    assert not may_use("ann", here)
    assert not may_use(here, "ann")
    assert not may_use(here, "anonymous-looking")
