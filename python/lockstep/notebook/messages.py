"""The frames on the socket between the kernel and a rank.

    4 bytes  length of the header, big-endian
    8 bytes  length of the payload
    header   a JSON object, for control
    payload  a pickle: the values that %push and %pull move; empty in all other frames

Until its owner has checked the peer's token, a reader accepts only a short frame without a payload. Nothing
is unpickled here.
"""

import json
import struct

# The environment variable in which a rank receives the token.
TOKEN_VARIABLE = "LOCKSTEP_NOTEBOOK_TOKEN"
# Each request has a number, and the reply repeats it. This one stands for the start of a rank.
START = 0

_LENGTHS = struct.Struct(">IQ")
_LONGEST_STRANGE_HEADER = 4096
_LONGEST_HEADER = 256 << 20


class ProtocolError(Exception):
    """The peer does not speak this protocol."""


def encode(header, payload=b""):
    """A list of buffers; a payload may be large, and is not copied."""
    text = json.dumps(header).encode("ascii")
    return [_LENGTHS.pack(len(text), len(payload)) + text, payload] if payload else \
           [_LENGTHS.pack(len(text), 0) + text]


class Reader:
    """Assembles frames from the bytes of a stream, in pieces of any size."""

    def __init__(self):
        self._bytes = bytearray()
        self.trusted = False

    def feed(self, data):
        self._bytes += data

    def next(self):
        """The next (header, payload), or None if it has not arrived completely."""
        if len(self._bytes) < _LENGTHS.size:
            return None
        header_size, payload_size = _LENGTHS.unpack_from(self._bytes)
        longest = _LONGEST_HEADER if self.trusted else _LONGEST_STRANGE_HEADER
        if header_size > longest or (payload_size and not self.trusted):
            raise ProtocolError("the frame is too long")
        begin = _LENGTHS.size + header_size
        end = begin + payload_size
        if len(self._bytes) < end:
            return None
        try:
            header = json.loads(self._bytes[_LENGTHS.size:begin])
        except ValueError as error:
            raise ProtocolError("the header is not JSON") from error
        if not isinstance(header, dict):
            raise ProtocolError("the header is not an object")
        with memoryview(self._bytes) as view:
            payload = bytes(view[begin:end])
        del self._bytes[:end]
        return header, payload
