"""Why a worker stops. Everything else is handled where it happens."""


class WorkerError(Exception):
    """The worker cannot go on. The message says what happened and the remedy. No offset moved for unfinished work."""


class BrokerUnreachable(WorkerError):
    """No broker answered in time."""


class ConsumerFailed(WorkerError):
    """The Kafka consumer stopped delivering or failed for good."""


class EngineGone(WorkerError):
    """The device was lost or its sessions hang; only a new process gets it back. Raised after a graceful drain."""


class DrainIncomplete(WorkerError):
    """A stop left something to the next owner. Raised after it."""


class NoEngineLeft(WorkerError):
    """No engine can score any more, whatever the rows are."""


class OffsetsWentBack(WorkerError):
    """A partition delivered offsets below those that were taken in: it is not the one it was. What is committed then is
    where it began again."""


class PublishFailed(WorkerError):
    """Scores or dead letters could not be published within the deadline."""
