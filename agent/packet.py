"""Packets of the agent's socket (PROTOCOL.md): a verb, then one key=value a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_BYTES = 4096


class PacketError(ValueError):
    """Bytes that are no packet of the protocol."""


@dataclass(frozen=True)
class Packet:
    """One message; `fields` holds what stood behind the verb."""

    verb: str
    fields: Mapping[str, str] = field(default_factory=dict)

    def get(self, key: str, default: str = "") -> str:
        return self.fields.get(key, default)

    def number(self, key: str) -> int:
        """The field as a whole number >= 0. Raises PacketError, naming the key."""
        text = self.get(key)
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise PacketError(f"{key}={text!r} of {self.verb!r} is not a whole number")
        return int(text)

    def encode(self) -> bytes:
        """The bytes to send. Raises PacketError when they don't fit one packet."""
        lines = [self.verb]
        for key, value in self.fields.items():
            lines.append(f"{key}={' '.join(value.split()) if _breaks(value) else value}")
        data = "\n".join(lines).encode()
        if len(data) > MAX_BYTES:
            raise PacketError(f"{self.verb!r} takes {len(data)} bytes, more than {MAX_BYTES}")
        return data


def _breaks(value: str) -> bool:
    return "\n" in value or "\0" in value


def decode(data: bytes) -> Packet:
    """The packet in these bytes; lines without `=` and unknown keys do no harm.

    Raises PacketError when it is not UTF-8 text or has no verb.
    """
    try:
        text = data.rstrip(b"\0\n").decode()
    except UnicodeDecodeError as error:
        raise PacketError("the packet is not UTF-8 text") from error
    verb, *lines = text.split("\n")
    if not verb.strip():
        raise PacketError("the packet has no verb")
    fields: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals:
            fields[key.strip()] = value
    return Packet(verb.strip(), fields)
