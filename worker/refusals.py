"""What brokers refuse, and what to do about it.

aiokafka does not know all codes and calls the others "unknown"; those that have a remedy are made known to it here.
"""

from aiokafka.errors import (
    BrokerResponseError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    kafka_errors,
)

from worker.config import KafkaConfig


class InvalidRecord(BrokerResponseError):  # type: ignore[misc]  # aiokafka has no types
    errno = 87
    message = "INVALID_RECORD"


class FencedInstanceId(BrokerResponseError):  # type: ignore[misc]  # aiokafka has no types
    errno = 82
    message = "FENCED_INSTANCE_ID"


kafka_errors.update({refusal.errno: refusal for refusal in (InvalidRecord, FencedInstanceId)})


def send_remedy(error: Exception, topic: str) -> str:
    """Of messages that were not taken."""
    if isinstance(error, TopicAuthorizationFailedError):
        return f"the user needs the ACL Write on the topic {topic}"
    if isinstance(error, InvalidRecord):
        return (
            "an event without a key gives a message without one, and a topic with cleanup.policy=compact takes none:"
            f" set cleanup.policy=delete for {topic}, or give the events keys"
        )
    return "check the brokers and the topic's limits"


def lookup_remedy(error: Exception, topic: str) -> str:
    """Of a topic whose partitions the brokers do not tell."""
    if isinstance(error, TopicAuthorizationFailedError):
        return f"the user needs the ACL Describe on the topic {topic}"
    return "create it"


def group_remedy(error: Exception, kafka: KafkaConfig, otherwise: str) -> str:
    """Of what the group refuses; `otherwise` where it is something else. The client hands such errors on as text."""
    text = repr(error)
    if FencedInstanceId.__name__ in text:
        name = kafka.group_instance_id
        return f"another process has the name {name}: give each its own kafka.group_instance_id"
    if GroupAuthorizationFailedError.__name__ in text:
        return f"the user needs the ACL Read on the group {kafka.group_id}"
    if TopicAuthorizationFailedError.__name__ in text:
        return "the user needs the ACLs Read and Describe on the input topics"
    return otherwise
