"""A connection that has closed, under the event loop that the commands use."""

import asyncio

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from tests.kafka.broker import Broker
from worker.cli.loop import run

pytestmark = pytest.mark.kafka


def test_a_write_to_a_transport_that_has_just_closed_is_a_lost_connection(broker: Broker) -> None:
    async def main() -> None:
        client = AIOKafkaClient(bootstrap_servers=broker.bootstrap)
        await client.bootstrap()
        try:
            node = client.get_random_node()
            connection = await client._get_conn(node)
            connection._writer.transport.abort()
            await asyncio.sleep(0)  # closed, and nobody who holds the connection knows
            with pytest.raises(KafkaConnectionError, match="the handler is closed"):
                await connection.send(MetadataRequest([]))
            assert not connection.connected()
            assert await client.force_metadata_update()
        finally:
            await client.close()

    run(main())
