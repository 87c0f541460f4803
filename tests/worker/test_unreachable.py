"""Where no broker is, the address is said as it was given."""

import pytest

from tests.kafka.process import free_port
from worker.cli.client import partitions
from worker.config import KafkaConfig, WorkerConfig
from worker.errors import BrokerUnreachable
from worker.publisher import Publisher


async def test_a_publisher_says_which_address_nobody_answers_at() -> None:
    kafka = KafkaConfig(bootstrap_servers=f"127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnreachable) as caught:
        await Publisher(kafka, WorkerConfig()).start()
    remedy = "check kafka.bootstrap_servers and the security settings"
    assert str(caught.value) == f"{kafka.bootstrap_servers}: no broker can be reached; {remedy}"


async def test_commands_say_which_address_nobody_answers_at() -> None:
    server = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnreachable) as caught:
        await partitions({"bootstrap_servers": [server]})
    assert str(caught.value).startswith(f"{server}: no broker can be reached; check the address")
