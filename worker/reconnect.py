"""Pauses between failed attempts to reach the brokers."""

import asyncio
import logging
from typing import Any, Final

from aiokafka.client import AIOKafkaClient

log = logging.getLogger("scorelane.reconnect")

FIRST_S: Final = 0.05
LONGEST_S: Final = 0.5
"""Doubled in between. The worker is back so long after its brokers at the latest."""


def pause_between_failures(client: AIOKafkaClient) -> None:
    """Have a client wait after each refresh of its metadata that no broker answered.

    Its producer asks for another one as soon as the last has failed; with a broker that refuses connections these were
    1,400 attempts a second, each with a line in the log. What is raised counts as a failure too: it would end the
    client's refreshing for good, and with it every lookup of the group's coordinator and every commit.
    """
    refresh, failures = client._metadata_update, 0

    async def refresh_patiently(*arguments: Any) -> bool:
        nonlocal failures
        updated = False
        try:
            updated = await refresh(*arguments)
        except Exception as error:
            log.warning("the brokers' metadata could not be read and is asked for again: %r", error)
        failures = 0 if updated else failures + 1
        if failures:
            await asyncio.sleep(min(FIRST_S * 2 ** min(failures - 1, 10), LONGEST_S))
        return updated

    client._metadata_update = refresh_patiently
