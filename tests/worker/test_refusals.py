import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    for_code,
)

from worker.config import KafkaConfig
from worker.refusals import ASKED_WRONG, create_remedy, group_remedy, lookup_remedy, send_remedy

KAFKA = KafkaConfig(bootstrap_servers="localhost:1", group_id="ads", group_instance_id="ads-7")


# Codes of the protocol, https://kafka.apache.org/protocol#protocol_error_codes
@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (87, "set cleanup.policy=delete for ads.scores, or give the events keys"),
        (29, "the ACL Write on the topic ads.scores"),
        (38, "check the brokers and the topic's limits"),
    ],
)
def test_messages_that_are_refused_have_their_remedy(code: int, remedy: str) -> None:
    assert remedy in send_remedy(for_code(code)(), "ads.scores")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (KafkaError(repr(for_code(82)())), "another process has the name ads-7: give each its own"),
        (GroupAuthorizationFailedError("ads"), "the user needs the ACL Read on the group ads"),
        (
            KafkaError(f"Unexpected error during coordination {GroupAuthorizationFailedError('ads')!r}"),
            "the user needs the ACL Read on the group ads",
        ),
        (TopicAuthorizationFailedError({"ads"}), "the user needs the ACLs Read and Describe on the input topics"),
        (KafkaTimeoutError(), "something else"),
    ],
)
def test_what_the_group_refuses_has_its_remedy(error: Exception, remedy: str) -> None:
    assert group_remedy(error, KAFKA, "something else").startswith(remedy)


def test_a_refusal_is_named_in_the_error() -> None:
    assert (repr(for_code(82)()), repr(for_code(87)())) == ("FencedInstanceId()", "InvalidRecord()")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(29, "the user needs the ACL Describe on the topic ads"), (3, "create it with `scorelane topics`")],
)
def test_a_topic_that_is_not_told_of_has_its_remedy(code: int, remedy: str) -> None:
    assert lookup_remedy(for_code(code)(), "ads") == remedy


@pytest.mark.parametrize(
    ("code", "wrong", "remedy"),
    [
        (17, True, "give it another name"),
        (29, False, "the user needs the ACL Create on the topic ads or on the cluster"),
        (31, False, "the user needs the ACL Create on the topic ads or on the cluster"),
        (36, False, "the user needs the ACL Describe on the topic ads to see it"),
        (37, True, "give another --partitions or --replication"),
        (38, True, "give --replication with at most the number of brokers"),
        (44, True, "give another --partitions or --replication"),
        (7, False, "check the brokers and try again"),
    ],
)
def test_a_topic_that_is_not_created_has_its_remedy(code: int, wrong: bool, remedy: str) -> None:
    error = for_code(code)()
    assert (isinstance(error, ASKED_WRONG), create_remedy(error, "ads")) == (wrong, remedy)
