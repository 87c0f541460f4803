"""Pauses between failed attempts to reach the brokers."""

import asyncio
from typing import Any, Final

from aiokafka.client import AIOKafkaClient

FIRST_S: Final = 0.05
LONGEST_S: Final = 0.5
"""Doubled in between. The worker is back so long after its brokers at the latest."""


def pause_between_failures(client: AIOKafkaClient) -> None:
    """Have a client wait after each refresh of its metadata that no broker answered.

    Its producer asks for another one as soon as the last has failed; with a broker that refuses connections these were
    1,400 attempts a second, each with a line in the log.
    """
    refresh, failures = client._metadata_update, 0

    async def refresh_patiently(*arguments: Any) -> bool:
        nonlocal failures
        updated: bool = await refresh(*arguments)
        failures = 0 if updated else failures + 1
        if failures:
            await asyncio.sleep(min(FIRST_S * 2 ** min(failures - 1, 10), LONGEST_S))
        return updated

    client._metadata_update = refresh_patiently
