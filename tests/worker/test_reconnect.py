import asyncio
from typing import Any

import pytest

from worker.reconnect import pause_between_failures


class Client:
    """Of aiokafka, as far as its metadata goes: the answers of each refresh are given."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    async def _metadata_update(self, *arguments: Any) -> bool:
        self.asked.append(arguments)
        return self.answers.pop(0)


async def test_pauses_double_up_to_half_a_second_and_end_with_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    client: Any = Client(*[False] * 6, True, False, True)
    pause_between_failures(client)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    answers = [await client._metadata_update("cluster", number) for number in range(9)]
    assert answers == [False] * 6 + [True, False, True]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.05]
    assert client.asked == [("cluster", number) for number in range(9)]


async def test_an_error_counts_as_a_failure_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    client: Any = Client()
    pause_between_failures(client)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await client._metadata_update("cluster", None) is False
    assert pauses == [0.05]
    assert "IndexError" in caplog.text
