"""Slow, plain counterparts of what the decoder does."""


def crc32(data: bytes) -> int:
    """CRC-32 bit by bit, as in ISO 3309."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def bucket(namespace: str, value: str, buckets: int) -> int:
    return 1 + crc32(f"{namespace}={value}".encode()) % (buckets - 1)
