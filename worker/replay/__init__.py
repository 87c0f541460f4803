"""Traffic through the whole worker without a broker or a device: recorded or made up, in simulated or in real time.

What is real: decoding, deadlines, classes, batching, routing, breakers, alarms, delivery, offsets, backpressure, drain.
What stands in: the Kafka client and the producer (`broker`), and how long an engine takes (`device`).
"""
