"""Fixtures for tests on a real Apache Kafka: one broker for the whole run, one of its own where a test breaks it."""

import logging
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.client import Client
from tests.kafka.worker import Configuration, Worker

# How long an example takes says nothing on a machine with other work.
settings.register_profile("scorelane", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("scorelane")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a broker when there can be none, with the reason."""
    marked = [item for item in items if item.get_closest_marker("kafka")]
    if marked and (reason := jars.missing()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def loud_loggers() -> Iterator[None]:
    """What a command silences in its own process is loud again for the next test."""
    loggers = [logging.getLogger(name) for name in ("", "scorelane", "aiokafka")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@contextmanager
def running_broker() -> Iterator[Broker]:
    broker = Broker()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@contextmanager
def warm_client(broker: Broker) -> Iterator[Client]:
    client = Client(broker.bootstrap)
    try:
        client.warm_up()
        yield client
    finally:
        client.close()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The broker of the whole run. Leave it running; a test that stops one takes `own_broker`."""
    with running_broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka(broker: Broker) -> Iterator[Client]:
    """A client of the session's broker, its internal topics warm."""
    with warm_client(broker) as client:
        yield client


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker for this test alone, to be killed, frozen and restarted."""
    with running_broker() as broker:
        yield broker


@pytest.fixture
def own_kafka(own_broker: Broker) -> Iterator[Client]:
    """A client of `own_broker`, its internal topics warm."""
    with warm_client(own_broker) as client:
        yield client


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name for this test's topic and group that no other test and no other run uses."""
    return f"{re.sub('[^a-zA-Z0-9]+', '-', request.node.name)[:60].strip('-')}-{uuid.uuid4().hex[:8]}"


StartWorker = Callable[..., Worker]


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Start a worker and wait until it is ready (unless ready=False). All are killed at the end."""
    workers: list[Worker] = []

    def start(config: Configuration, *, ready: bool = True) -> Worker:
        worker = Worker(config, tmp_path, f"worker-{len(workers)}")
        workers.append(worker)
        return worker.wait_ready() if ready else worker

    try:
        yield start
    finally:
        for worker in workers:
            worker.sigkill()
