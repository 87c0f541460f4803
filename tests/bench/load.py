"""An open loop of events: each is sent when its time has come, whatever happened to the ones before.

    python -m tests.bench.load BOOTSTRAP TOPIC PARTITIONS SIZE RATE SECONDS

The event's time and the record's timestamp are the intended send time, so a sender or a broker that lags shows as
latency and is not left out. Prints the 99th percentile of the time from there to the broker's acknowledgement, in
milliseconds: what of the latency is not the worker's.
"""

import asyncio
import sys
import time

import msgspec
import numpy as np
import uvloop
from aiokafka import AIOKafkaProducer

from tests.bench.events import events

TICK_S = 0.002
"""Events of one tick are one batch, to one partition."""


async def main(bootstrap: str, topic: str, partitions: int, size: int, rate: float, seconds: float) -> None:
    pool = [list(msgspec.structs.asdict(event).values()) for event in events(size, 4096)]
    time_field = 4
    encode = msgspec.msgpack.Encoder().encode
    sent: list[asyncio.Future[object]] = []
    lags: list[float] = []

    def acknowledged(due: float) -> None:
        lags.append((time.monotonic() - due) * 1000)

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, max_batch_size=512 << 10) as producer:
        await producer.partitions_for(topic)
        start, wall_ms = time.monotonic(), time.time() * 1000
        number = 0
        for tick in range(int(seconds / TICK_S)):
            due = start + tick * TICK_S
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            batch = producer.create_batch()
            while number < rate * (tick + 1) * TICK_S:
                intended = int(wall_ms + number / rate * 1000)
                event = pool[number % len(pool)]
                event[time_field] = intended
                batch.append(timestamp=intended, key=None, value=encode(event))
                number += 1
            batch.close()
            future = await producer.send_batch(batch, topic, partition=tick % partitions)
            future.add_done_callback(lambda _, due=due: acknowledged(due))
            sent.append(future)
        await asyncio.gather(*sent)
    print(np.percentile(lags[len(lags) // 5 :], 99))


if __name__ == "__main__":
    name, into, count, event_bytes, per_s, duration = sys.argv[1:]
    uvloop.run(main(name, into, int(count), int(event_bytes), float(per_s), float(duration)))
