"""What brokers refuse, and what to do about it.

aiokafka does not know all codes and calls the others "unknown"; those that have a remedy are made known to it here.
"""

from typing import Final

from aiokafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAlreadyExistsError,
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


ASKED_WRONG: Final = (InvalidPartitionsError, InvalidReplicationFactorError, InvalidTopicError, PolicyViolationError)
"""Why topics are not created that could be, asked for otherwise."""

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
    return "create it with `scorelane topics`"


def create_remedy(error: Exception, topic: str) -> str:
    """Of a topic that is not created."""
    if isinstance(error, TopicAuthorizationFailedError | ClusterAuthorizationFailedError):
        return f"the user needs the ACL Create on the topic {topic} or on the cluster"
    if isinstance(error, TopicAlreadyExistsError):
        return f"the user needs the ACL Describe on the topic {topic} to see it"
    if isinstance(error, InvalidReplicationFactorError):
        return "give --replication with at most the number of brokers"
    if isinstance(error, InvalidPartitionsError | PolicyViolationError):
        return "give another --partitions or --replication"
    if isinstance(error, InvalidTopicError):
        return "give it another name"
    return "check the brokers and try again"


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
