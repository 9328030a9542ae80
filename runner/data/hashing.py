"""Hashes of strings that TensorFlow computes in Keras's layers, in Python: FarmHash64 and SipHash-2-4.

`farm_hash` is `Fingerprint64` of Google's library of that name, whose values never change. `sip_hash` is that of
Aumasson and Bernstein, SipHash: a fast short-input PRF (2012). `tests/data/test_layers.py` compares both with
TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Sequence

# Hashes are unsigned integers of 64 bits.
_MASK = (1 << 64) - 1

# Constants of FarmHash: primes between 2^63 and 2^64, and the multiplier of its mix of two words.
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F

# Initial state of SipHash: the ASCII codes of "somepseudorandomlygeneratedbytes".
_SIP_STATE = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def bucket(content: bytes, buckets: int, salt: Sequence[int] | None = None) -> int:
    """Returns the bucket of a string, from 0, as `tf.strings.to_hash_bucket_fast` or, with a salt, `_strong` does.

    Args:
      content: the string.
      buckets: number of buckets, at least 1.
      salt: two integers; None: none.

    Example:
      >>> bucket(b"Hello", 3), bucket(b"Hello", 3, [133, 137])
      (0, 1)
    """
    hashed = farm_hash(content) if salt is None else sip_hash(content, salt)
    return hashed % buckets


def farm_hash(content: bytes) -> int:
    """Returns the 64-bit FarmHash of a string."""
    size = len(content)
    if size <= 16:
        return _farm_hash_up_to_16(content)
    if size <= 64:
        return _farm_hash_up_to_64(content)
    return _farm_hash_of_long(content)


def _farm_hash_up_to_16(content: bytes) -> int:
    size = len(content)
    multiplier = (_K2 + size * 2) & _MASK
    if size >= 8:
        a = _word(content, 0) + _K2
        b = _word(content, size - 8)
        c = _rotated(b, 37) * multiplier + a
        d = (_rotated(a, 25) + b) * multiplier
        return _mixed(c, d, multiplier)
    if size >= 4:
        first = int.from_bytes(content[:4], "little")
        last = int.from_bytes(content[-4:], "little")
        return _mixed(size + (first << 3), last, multiplier)
    if size > 0:
        y = content[0] + (content[size >> 1] << 8)
        z = size + (content[-1] << 2)
        return (_shifted((y * _K2 ^ z * _K0) & _MASK) * _K2) & _MASK
    return _K2


def _farm_hash_up_to_64(content: bytes) -> int:
    size = len(content)
    multiplier = (_K2 + size * 2) & _MASK
    # The shorter strings use another constant for the first word.
    a = _word(content, 0) * (_K1 if size <= 32 else _K2)
    b = _word(content, 8)
    c = _word(content, size - 8) * multiplier
    d = _word(content, size - 16) * _K2
    y = _rotated(a + b, 43) + _rotated(c, 30) + d
    z = a + _rotated(b + _K2, 18) + c
    if size <= 32:
        return _mixed(y, z, multiplier)
    z = _mixed(y, z, multiplier)
    e = _word(content, 16) * multiplier
    f = _word(content, 24)
    g = (y + _word(content, size - 32)) * multiplier
    h = (z + _word(content, size - 24)) * multiplier
    return _mixed(_rotated(e + f, 43) + _rotated(g, 30) + h, e + _rotated(f + a, 18) + g, multiplier)


def _farm_hash_of_long(content: bytes) -> int:
    size = len(content)
    x = 81
    y = (81 * _K1 + 113) & _MASK
    z = (_shifted((y * _K2 + 113) & _MASK) * _K2) & _MASK
    v = (0, 0)
    w = (0, 0)
    x = x * _K2 + _word(content, 0)
    # All blocks of 64 bytes except the last one, which may be partial and then overlaps with the one before.
    for start in range(0, (size - 1) // 64 * 64, 64):
        x = _rotated(x + y + v[0] + _word(content, start + 8), 37) * _K1
        y = _rotated(y + v[1] + _word(content, start + 48), 42) * _K1
        x = (x & _MASK) ^ w[1]
        y = y + v[0] + _word(content, start + 40)
        z = _rotated(z + w[0], 33) * _K1
        v = _mixed_block(content, start, v[1] * _K1, x + w[0])
        w = _mixed_block(content, start + 32, z + w[1], y + _word(content, start + 16))
        x, z = z, x
    multiplier = _K1 + ((z & 0xFF) << 1)
    start = size - 64
    w = ((w[0] + ((size - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    x = _rotated(x + y + v[0] + _word(content, start + 8), 37) * multiplier
    y = _rotated(y + v[1] + _word(content, start + 48), 42) * multiplier
    x = (x & _MASK) ^ ((w[1] * 9) & _MASK)
    y = y + v[0] * 9 + _word(content, start + 40)
    z = _rotated(z + w[0], 33) * multiplier
    v = _mixed_block(content, start, v[1] * multiplier, x + w[0])
    w = _mixed_block(content, start + 32, z + w[1], y + _word(content, start + 16))
    x, z = z, x
    first = _mixed(v[0], w[0], multiplier) + _shifted(y & _MASK) * _K0 + z
    second = _mixed(v[1], w[1], multiplier) + x
    return _mixed(first, second, multiplier)


def _mixed_block(content: bytes, start: int, a: int, b: int) -> tuple[int, int]:
    """Returns a mix of 32 bytes and two seeds."""
    w, x, y, z = (_word(content, start + offset) for offset in (0, 8, 16, 24))
    a = a + w
    b = _rotated(b + a + z, 21)
    c = a
    a = a + x + y
    b = b + _rotated(a, 44)
    return (a + z) & _MASK, (b + c) & _MASK


def _mixed(u: int, v: int, multiplier: int) -> int:
    """Returns a mix of two words."""
    a = ((u ^ v) & _MASK) * multiplier & _MASK
    a ^= a >> 47
    b = ((v ^ a) & _MASK) * multiplier & _MASK
    b ^= b >> 47
    return (b * multiplier) & _MASK


def _word(content: bytes, start: int) -> int:
    return int.from_bytes(content[start : start + 8], "little")


def _rotated(value: int, bits: int) -> int:
    """Returns a word rotated to the right."""
    value &= _MASK
    return ((value >> bits) | (value << (64 - bits))) & _MASK


def _shifted(value: int) -> int:
    return value ^ (value >> 47)


def sip_hash(content: bytes, key: Sequence[int]) -> int:
    """Returns the 64-bit SipHash-2-4 of a string.

    Args:
      content: the string.
      key: two integers.
    """
    first, second = (part & _MASK for part in key)
    state = (_SIP_STATE[0] ^ first, _SIP_STATE[1] ^ second, _SIP_STATE[2] ^ first, _SIP_STATE[3] ^ second)
    size = len(content)
    # The last word has the remaining bytes and, as its highest byte, the length.
    padded = content + bytes(7 - size % 8) + bytes([size & 0xFF])
    for start in range(0, len(padded), 8):
        word = _word(padded, start)
        state = (*state[:3], state[3] ^ word)
        state = _sip_round(_sip_round(state))
        state = (state[0] ^ word, *state[1:])
    state = (state[0], state[1], state[2] ^ 0xFF, state[3])
    for _ in range(4):
        state = _sip_round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _sip_round(state: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    v0, v1, v2, v3 = state
    v0 = (v0 + v1) & _MASK
    v1 = _rotated(v1, 64 - 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 = (v2 + v3) & _MASK
    v3 = _rotated(v3, 64 - 16) ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = _rotated(v3, 64 - 21) ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = _rotated(v1, 64 - 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3
