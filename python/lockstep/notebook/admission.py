"""Admits ranks that connect to the kernel's socket: processes of the same user that know the job's token."""

import hmac
import os
import socket
import struct

from . import messages
from .peer import Peer

_HELLO_SECONDS = 10
_LONGEST_PIECE = 4096
_CREDENTIALS = struct.Struct("3i")  # pid, user, group


def process_behind(connection):
    """(pid, user) at the other end of a Unix socket, as the operating system reports it."""
    return _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[:2]


def admit(listener, token, free_ranks):
    """The peer at the other end of the next connection, or None if it is not one of our ranks."""
    connection, _ = listener.accept()
    connection.settimeout(_HELLO_SECONDS)
    outputs = []
    try:
        pid, user = process_behind(connection)
        if user == os.getuid():
            reader = messages.Reader()
            hello = _read_hello(connection, reader, outputs)
            if _is_valid(hello, token, free_ranks) and len(outputs) == 1:
                reader.trusted = True
                return Peer(hello["rank"], pid, connection, outputs[0], reader)
    except (OSError, messages.ProtocolError):
        pass
    connection.close()
    for fd in outputs:
        os.close(fd)
    return None


def _read_hello(connection, reader, outputs):
    """The first header, or {} if the peer closed the connection. Appends the descriptors sent with it."""
    while (frame := reader.next()) is None:
        data, received, _, _ = socket.recv_fds(connection, _LONGEST_PIECE, 1)
        outputs += received
        if not data:
            return {}
        reader.feed(data)
    return frame[0]


def _is_valid(hello, token, free_ranks):
    given = hello.get("token")
    return isinstance(given, str) and hmac.compare_digest(given.encode(), token.encode()) \
        and hello.get("rank") in free_ranks
