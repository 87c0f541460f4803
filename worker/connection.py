"""Connections of the Kafka client that have closed."""

from collections.abc import Awaitable, Callable
from functools import cache, wraps
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError

_SENDING: Final = ("send", "_send_sasl_token")


@cache
def tell_closed_transports() -> None:
    """Have the client take uvloop's `RuntimeError` for the lost connection that it is.

    A write to a transport that has closed a moment ago raises it there, while asyncio's own loop drops the write. The
    client expects `OSError` alone (aio-libs/aiokafka#1038): the error ended the worker out of its poll or, out of the
    refresh of the metadata, the group's coordination, whereupon no commit succeeded any more. For the whole process.
    """
    for name in _SENDING:
        setattr(AIOKafkaConnection, name, _telling(getattr(AIOKafkaConnection, name)))


def _telling(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(send)
    def sending(connection: AIOKafkaConnection, *arguments: Any, **options: Any) -> Awaitable[Any]:
        try:
            return send(connection, *arguments, **options)
        except RuntimeError as error:
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {connection.host}:{connection.port} broken: {error}") from error

    return sending
