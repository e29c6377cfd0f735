"""Which IP addresses a stranger's URL may reach: the public internet and nothing else.

Rule: an IPv4 address passes when no network of `IPV4_CLOSED` holds it; an IPv6 address passes when it lies in
2000::/3 (the only global unicast space IANA has given out) and in no network of `IPV6_CLOSED`. An IPv6 address that
carries an IPv4 address (mapped, compatible, SIIT, NAT64, 6to4, Teredo, ISATAP) is refused as a whole, whatever it
carries: no public picture needs one, and the translator may stand inside our network.

The table is our own, not `ipaddress.is_global`, whose answers change between Python releases; both must agree.
Source: IANA IPv4 and IPv6 special-purpose address registries, and the cloud vendors' metadata addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

IPV4_CLOSED: Final = tuple(
    ipaddress.IPv4Network(net)
    for net in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; Alibaba metadata 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host agent, a public number that is not public
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle metadata 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relay
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
IPV6_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
IPV6_CLOSED: Final = tuple(
    ipaddress.IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
# Never reachable, even for an endpoint that the operator allowed: one answer from here is a set of cloud credentials.
METADATA: Final = tuple(
    ipaddress.ip_network(net)
    for net in (
        "169.254.0.0/16",
        "100.100.100.200/32",
        "192.0.0.192/32",
        "168.63.129.16/32",
        "fd00:ec2::/32",
        "fe80::/10",
    )
)
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


def parse_address(text: str) -> IPAddress:
    """The address in `text`, which must be canonical dotted quad or IPv6 without a zone. Raises ValueError."""
    if "%" in text:
        raise ValueError("an address with a zone")
    return ipaddress.ip_address(text)


def is_public(address: IPAddress, closed: Iterable[IPNetwork] = ()) -> bool:
    """True when a stranger's URL may reach `address`. `closed`: the operator's own networks, refused as well."""
    if any(address.version == net.version and address in net for net in closed):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in net for net in IPV4_CLOSED)
    if address.scope_id is not None or (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return address.is_global and address in IPV6_GLOBAL and not any(address in net for net in IPV6_CLOSED)


def is_metadata(address: IPAddress) -> bool:
    """True for cloud metadata and link-local addresses, also inside an IPv4-mapped IPv6 address."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    target = mapped or address
    return any(target.version == net.version and target in net for net in METADATA)
