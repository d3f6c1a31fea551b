"""Messages of stores: a command and some byte strings, their lengths told before and checked. Nothing is ever unpickled.

A message is a header (a mark, the command, the number of its fields, the bytes that follow) and for each field its length and its bytes.
"""
import struct

from tritorch.distributed.failures import DistNetworkError
from tritorch.errors import sentence

MARK = 0x7474
LARGEST = 1 << 28                                                        # bytes of a message
_HEADER, _LENGTH = struct.Struct("<HBxII"), struct.Struct("<I")


def packed(command, fields):
    """The bytes of a message."""
    body = b"".join(part for field in fields for part in (_LENGTH.pack(len(field)), field))
    if len(body) > LARGEST:
        raise DistNetworkError(sentence("Store", f"at most {LARGEST} bytes in a message", len(body)))
    return _HEADER.pack(MARK, command, len(fields), len(body)) + body


class Messages:
    """What has come over a connection, cut into messages."""

    def __init__(self):
        self.bytes = bytearray()

    def next(self):
        """The next (command, fields), None before all of it has come. Raises DistNetworkError for what is no message."""
        if len(self.bytes) < _HEADER.size:
            return None
        mark, command, count, length = _HEADER.unpack_from(self.bytes)
        if mark != MARK or length > LARGEST or count * _LENGTH.size > length:
            raise DistNetworkError(sentence("Store", "a message of a store", bytes(self.bytes[:_HEADER.size])))
        if len(self.bytes) < _HEADER.size + length:
            return None
        body = bytes(memoryview(self.bytes)[_HEADER.size:_HEADER.size + length])
        del self.bytes[:_HEADER.size + length]
        return command, _fields(body, count)


def _fields(body, count):
    fields, at = [], 0
    for _ in range(count):
        if at + _LENGTH.size > len(body):
            break
        end = at + _LENGTH.size + _LENGTH.unpack_from(body, at)[0]
        fields.append(body[at + _LENGTH.size:end])
        at = end
    if at != len(body) or len(fields) != count:
        raise DistNetworkError(sentence("Store", f"{count} fields of {len(body)} bytes", f"{len(fields)} of {at}"))
    return fields
