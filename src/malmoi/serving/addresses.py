"""Where a service listens, and by which names it is asked.

In: the operator's address, or the `Host` of a request. Out: sockets that are bound, so that a fault is told before
anything is loaded; and whether a name is one of ours. A page of another site whose name leads to this machine is asked
by that name, and so cannot read what is meant for this machine alone.
"""

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Sequence

from malmoi.errors import ConfigError

HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]/@\s]+))(?::[0-9]*)?")
OWN_NAMES = ("localhost",)
"""For a service that this machine's own names alone may ask."""


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_ours(host: str, names: Sequence[str]) -> bool:
    """Whether a request's `Host` is among the names, or this machine's own."""
    found = HOST.fullmatch(host)
    if "*" in names:
        return True
    if found is None:
        return False
    name = (found["six"] or found["name"]).lower().removesuffix(".")
    return is_loopback(name) or name in {one.lower() for one in names}


def bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of a host; `ConfigError` where there is none to be had."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sockets.append(bind_one(family, kind, protocol, (address[0], port, *address[2:])))
            except OSError as error:
                # A machine without IPv6 may well have the name of an address for it.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or len(found) == 1:
                    raise
            # Port 0 is the same free one on all addresses.
            port = sockets[0].getsockname()[1] if sockets else port
        if not sockets:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except (OSError, UnicodeError) as error:
        for one in sockets:
            one.close()
        raise cannot_listen(host, port, error) from error
    return sockets


def bind_one(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def cannot_listen(host: str, port: int, error: Exception) -> ConfigError:
    """Why not, and what to do."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        advice = "another program listens there; stop it, or give another --port (0 takes any that is free)"
    elif number == errno.EACCES:
        advice = "this port is not for everybody; give a --port from 1024 on"
    else:
        advice = "--host must be an address or a name of this machine"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"cannot listen on {host} port {port} ({reason}): {advice}")
