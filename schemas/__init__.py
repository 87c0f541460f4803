"""What crosses a wire or a package boundary. Imports nothing else of scorelane, and no asyncio.

An *event* (`event`: TippingEvent, AdEvent, or a user's own format) is the body of one record. A *spec* (`spec`:
ModelSpec of FeatureSpecs) says which fields of an event a model reads and which *tensors* (TensorSpec) they become.
A *decoder* (`decoder`) turns a chunk of record values into *rows* (`rows`: Rows), the scorable events as columns; an
*encoder* (`encoder`) makes record values from mappings, such as the rows of a *sample* (`samples`).

A value that cannot be scored is an *invalid event* (`errors`: InvalidEvent with one of REASONS) and becomes a *dead
letter* (`dead_letter`: DeadLetter). A *score* (`score`: Score) is the answer to one event. An *alarm* (`alarm`:
Alarm) says that the service began or ceased to miss its latency or to fail.
"""
