"""An open loop of events: each is sent when its time has come, whatever happened to the ones before.

    python -m tests.bench.load BOOTSTRAP TOPIC EVENTS RATE SECONDS

EVENTS is a file of `tests.bench.latency.save_events`; its events are sent in turn. The record's timestamp and the item
of the event that the file names are the intended send time, so a sender or a broker that lags shows as latency and is
not left out. Prints the first and the last intended send time, in milliseconds since the epoch, and the 99th percentile
of the time from there to the broker's acknowledgement, in milliseconds: what of the latency is not the worker's.
"""

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from aiokafka import AIOKafkaProducer

TICK_S = 0.005
"""Events of one tick are one batch, to one partition: what a producer with a linger of 5 ms, a usual one, sends. With
2 ms a small broker's CPU was full of produce requests, and the loop measured those. The wait is before the append, from
where the worker's latency counts; it is in what counts from the intended send time."""
MAX_BATCH = 960 << 10


async def main(bootstrap: str, topic: str, events: bytes, rate: float, seconds: float) -> None:
    due_field, pool = msgspec.msgpack.decode(events)
    encode = msgspec.msgpack.Encoder().encode
    sent: list[asyncio.Future[object]] = []
    lags: list[float] = []

    def acknowledged(due: float) -> None:
        lags.append((time.monotonic() - due) * 1000)

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, max_batch_size=MAX_BATCH) as producer:
        partitions = len(await producer.partitions_for(topic))
        start, wall_ms = time.monotonic(), time.time() * 1000
        number, intended = 0, int(wall_ms)
        for tick in range(int(seconds / TICK_S)):
            # The tick's events are due from its beginning to its end, when they are sent.
            end = start + (tick + 1) * TICK_S
            if (early := end - time.monotonic()) > 0:
                await asyncio.sleep(early)
            until = rate * (tick + 1) * TICK_S
            if number >= until:
                continue
            batch = producer.create_batch()
            while number < until:
                intended = int(wall_ms + number / rate * 1000)
                event = pool[number % len(pool)]
                event[due_field] = intended
                if batch.append(timestamp=intended, key=None, value=encode(event)) is None:
                    sys.exit(f"{rate:.0f} events a second are more than {MAX_BATCH} bytes in {TICK_S} s")
                number += 1
            batch.close()
            future = await producer.send_batch(batch, topic, partition=tick % partitions)
            future.add_done_callback(lambda _, due=end - TICK_S: acknowledged(due))
            sent.append(future)
        await asyncio.gather(*sent)
    print(int(wall_ms), intended, np.percentile(lags[len(lags) // 5 :], 99))


if __name__ == "__main__":
    server, into, file, per_s, duration = sys.argv[1:]
    uvloop.run(main(server, into, Path(file).read_bytes(), float(per_s), float(duration)))
