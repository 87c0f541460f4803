"""Configuration: what loads, what is refused and how it is said, and what aiokafka gets of it."""

import asyncio
import ssl
import subprocess
import tomllib
from pathlib import Path

import msgspec
import pytest

from worker.config import AdminConfig, Config, ConfigError, KafkaConfig, TopicConfig, WorkerConfig
from worker.config_example import documentation, example

ROOT = Path(__file__).parents[2]
MINIMAL = """
[kafka]
bootstrap_servers = "localhost:9092"
[[topics]]
name = "tips"
model = "models/tipping"
"""


def load(tmp_path: Path, text: str, **environ: str) -> Config:
    path = tmp_path / "worker.toml"
    path.write_text(text)
    return Config.load(path, environ)


def problems(tmp_path: Path, text: str, **environ: str) -> list[str]:
    """The messages, without the directory of the file."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **environ)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


def test_defaults_follow_from_the_topic_and_paths_from_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    (topic,) = config.topics
    assert topic.model == str(tmp_path / "models/tipping")
    assert (topic.scores, topic.dead_letters, topic.score_format) == ("tips.scores", "tips.dead", "msgpack")
    assert (topic.engine, topic.fallback, topic.budget_ms) == ("ort", ("light",), 50.0)
    assert config.worker == WorkerConfig()
    assert config.admin == AdminConfig()


def test_the_score_format_follows_the_format(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + 'format = "json"\n').topics[0].score_format == "json"
    assert load(tmp_path, MINIMAL + 'format = "json"\nscore_format = "msgpack"\n').topics[0].score_format == "msgpack"


def test_an_absolute_path_stays(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL.replace("models/tipping", "/srv/m")).topics[0].model == "/srv/m"


def test_the_environment_wins_and_is_converted(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        MINIMAL,
        SCORELANE_KAFKA_BOOTSTRAP_SERVERS="a:1,b:2",
        SCORELANE_KAFKA_CHECK_CRCS="false",
        SCORELANE_WORKER_LANES="7",
        SCORELANE_ADMIN_PORT="0",
        OTHER="x",
    )
    assert config.kafka.bootstrap_servers == "a:1,b:2"
    assert config.kafka.check_crcs is False
    assert (config.worker.lanes, config.admin.port) == (7, 0)


def test_service_links_of_kubernetes_are_not_overrides(tmp_path: Path) -> None:
    # What a pod sees of Services named scorelane, scorelane-admin and scorelane-worker.
    config = load(
        tmp_path,
        MINIMAL,
        SCORELANE_SERVICE_HOST="10.0.0.1",
        SCORELANE_ADMIN_PORT="tcp://10.0.0.2:80",
        SCORELANE_ADMIN_PORT_80_TCP="tcp://10.0.0.2:80",
        SCORELANE_ADMIN_PORT_80_TCP_ADDR="10.0.0.2",
        SCORELANE_WORKER_SERVICE_PORT="80",
        SCORELANE_WORKER_SERVICE_PORT_HTTP="80",
    )
    assert config.admin.port == 8080


def test_a_string_for_a_list_is_answered_with_the_list(tmp_path: Path) -> None:
    assert problems(tmp_path, MINIMAL + 'fallback = "light"\n') == [
        "worker.toml: topics[tips].fallback: 'light': not a list; write a list, [\"light\"]"
    ]
    segment = '[[topics.segments]]\nname = "s"\nmodel = "m"\ntensor = "ids"\ncolumn = 1\nvalues = "4"\n'
    assert problems(tmp_path, MINIMAL + segment) == [
        "worker.toml: topics[tips].segments[s].values: '4': not a list; write a list, [4]"
    ]


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    text = """
[kafka]
bootstrap_server = "x"
sasl_password = 3
[worker]
lanes = 0
[[topics]]
name = "tips"
model = "m"
format = "xml"
[[topics]]
name = "ads"
"""
    assert problems(tmp_path, text, SCORELANE_ADMIN_PORT="many", SCORELANE_WORKER_LANS="3") == [
        "environment: SCORELANE_WORKER_LANS: unknown key; did you mean SCORELANE_WORKER_LANES?",
        "worker.toml: kafka.bootstrap_server: unknown key; did you mean bootstrap_servers?",
        "worker.toml: kafka.bootstrap_servers: missing; add bootstrap_servers = ...",
        "worker.toml: kafka.sasl_password: ***: Expected `str`, got `int`; correct it",
        "worker.toml: topics[tips].format: 'xml': Invalid enum value 'xml'; "
        "use one of msgpack, json, or remove it (default 'msgpack')",
        "worker.toml: topics[ads].model: missing; add model = ...",
        "worker.toml: worker.lanes: 0: Expected `int` >= 1; correct it, or remove it (default 4)",
        "environment: SCORELANE_ADMIN_PORT: 'many': Expected `int`, got `str`; correct it, or remove it (default 8080)",
    ]


FORM = "host:port, several separated by commas, without a scheme such as kafka://"
TOPIC = "1 to 249 letters, digits, '.', '_' and '-', other than '.' and '..'"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"localhost:9092"', '"localhost"', f"kafka.bootstrap_servers: 'localhost': not of this form; write {FORM}"),
        (
            '"localhost:9092"',
            '"kafka://localhost:9092"',
            f"kafka.bootstrap_servers: 'kafka://localhost:9092': not of this form; write {FORM}",
        ),
        ('"tips"', '"my ads"', f"topics[my ads].name: 'my ads': not of this form; write {TOPIC}"),
        (
            'name = "tips"',
            'name = "tips"\nfallback = ["light", "tree"]',
            "topics[tips].fallback: ['light', 'tree']: Invalid enum value 'tree' (item 2 of the list); "
            "use one of trt, ort, trees, light, constant, or remove it (default ('light',))",
        ),
        (
            'name = "tips"',
            'name = "tips"\ndevice = "gpu"',
            "topics[tips].device: 'gpu': not of this form; write a number, or a UUID that begins with GPU- or MIG-",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_words(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert problems(tmp_path, MINIMAL.replace(old, new)) == [f"worker.toml: {problem}"]


@pytest.mark.parametrize("servers", ["localhost:9092", "a:1, b.example:2", "[::1]:9092", "10.0.0.1:9092 ,b:2"])
def test_brokers_are_hosts_with_ports(tmp_path: Path, servers: str) -> None:
    assert load(tmp_path, MINIMAL.replace("localhost:9092", servers)).kafka.bootstrap_servers == servers


def test_syntax_errors_name_the_line(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "[kafka]\nbootstrap_servers = \n")
    assert problem.startswith("worker.toml: line 2: ")


def test_other_bytes_than_utf8_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "worker.toml"
    path.write_bytes(b"[kafka]\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"worker\.toml: line 2: not UTF-8; save the file as UTF-8"):
        Config.load(path, {})


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff" + MINIMAL).topics[0].name == "tips"


def test_nesting_without_end_is_one_problem(tmp_path: Path) -> None:
    assert problems(tmp_path, f"a = {'[' * 3000}{']' * 3000}") == [
        "worker.toml: lists or tables are nested too deeply; see `scorelane check --example`"
    ]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("localhost:9092", "localhost:9092, b:99999", "kafka.bootstrap_servers: 'b:99999': not a port"),
        ("localhost:9092", "localhost:0", "kafka.bootstrap_servers: 'localhost:0': not a port"),
        ('"tips"', '".."', "topics[..].name: '..': "),
        ('"tips"', '"tips"\nscores = "."', "topics[tips].scores: '.': "),
        ('"tips"', '"tips"\ndead_letters = ".."', "topics[tips].dead_letters: '..': "),
        ("[[topics]]", "[alarms]\ntopic = '.'\n[[topics]]", "alarms.topic: '.': "),
        ("[[topics]]", f"[worker]\ninbox_bytes = {10**30}\n[[topics]]", "worker.inbox_bytes: 1000000000"),
    ],
)
def test_values_that_no_broker_could_use(tmp_path: Path, old: str, new: str, key: str) -> None:
    (problem,) = problems(tmp_path, MINIMAL.replace(old, new))
    assert problem.startswith(f"worker.toml: {key}"), problem


def test_lists_of_tables_are_not_set_from_the_environment(tmp_path: Path) -> None:
    assert problems(tmp_path, MINIMAL, SCORELANE_TOPICS_NAME="x", SCORELANE_TOPICS_PORT="tcp://10.0.0.1:1") == [
        "environment: SCORELANE_TOPICS_NAME: [[topics]] is not set from here; "
        "set it in worker.toml, or unset the variable"
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file or directory; give --config FILE"):
        Config.load(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "",
            ["kafka: missing; write [kafka] with bootstrap_servers", "topics: missing; write [[topics]] once for each"],
        ),
        (
            MINIMAL.replace("[[topics]]", "[topics]"),
            [
                "topics: {'name': 'tips', 'model': 'models/tipping'}: not a list of tables; "
                "write [[topics]] once for each"
            ],
        ),
        ("worker = 3\n" + MINIMAL, ["worker: 3: not a table; write [worker] and its keys below it"]),
        (
            MINIMAL + "[worker]\ncompresion = 'zstd'\n",
            ["worker.compresion: unknown key; did you mean compression?"],
        ),
        ("[wroker]\nlanes = 1\n" + MINIMAL, ["wroker: unknown key; did you mean worker?"]),
    ],
)
def test_structure(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert problems(tmp_path, text) == [f"worker.toml: {problem}" for problem in expected]


@pytest.mark.parametrize(
    ("section", "line", "key"),
    [
        ("kafka", "rebalance_timeout_ms = 20000", "worker.drain_timeout_ms"),
        ("worker", "drain_timeout_ms = 20000", "worker.drain_timeout_ms"),
        ("kafka", "request_timeout_ms = 30000", "kafka.rebalance_timeout_ms"),
        ("kafka", "heartbeat_interval_ms = 10000", "kafka.heartbeat_interval_ms"),
        ("kafka", "max_partition_fetch_bytes = 1000", "worker.max_event_bytes"),
        ("kafka", "fetch_max_bytes = 1048575", "kafka.max_partition_fetch_bytes"),
        ("kafka", "sasl_mechanism = 'PLAIN'", "kafka.sasl_mechanism"),
        ("kafka", "security_protocol = 'SASL_SSL'", "kafka.sasl_mechanism"),
        ("kafka", "ssl_cafile = 'ca.pem'", "kafka.ssl_cafile"),
        ("kafka", "security_protocol = 'SSL'\nssl_keyfile = 'k.pem'", "kafka.ssl_keyfile"),
        ("worker", "inbox_bytes = 1000", "worker.max_event_bytes"),
        ("worker", "inbox_rows = 255", "topics[tips].max_batch"),
        ("worker", "commit_interval_ms = 10000", "worker.commit_interval_ms"),
        ("worker", "stall_timeout_ms = 30000", "worker.publish_timeout_ms"),
        ("topics", "fallback = ['light', 'ort']", "topics[tips].fallback"),
        ("topics", "fallback = ['light', 'light']", "topics[tips].fallback"),
        ("topics", "scores = 'tips'", "topics[tips].scores"),
        ("topics", "dead_letters = 'tips.scores'", "topics[tips].scores"),
    ],
)
def test_values_that_do_not_fit_together(tmp_path: Path, section: str, line: str, key: str) -> None:
    header = "[[topics]]" if section == "topics" else f"[{section}]"
    text = MINIMAL if header in MINIMAL else MINIMAL + f"{header}\n"
    (problem,) = problems(tmp_path, text.replace(f"{header}\n", f"{header}\n{line}\n"))
    assert problem.split(": ")[1] == key


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("", "kafka.sasl_username kafka.sasl_password"),
        ("sasl_username = 'u'", "kafka.sasl_password"),
        ("sasl_username = 'u'\nsasl_password = 'p'\nsasl_password_file = 'f'", "kafka.sasl_password"),
    ],
)
def test_a_login_needs_a_user_and_one_password(tmp_path: Path, line: str, key: str) -> None:
    login = f"[kafka]\nsecurity_protocol = 'SASL_SSL'\nsasl_mechanism = 'PLAIN'\n{line}\n"
    found = problems(tmp_path, MINIMAL.replace("[kafka]\n", login))
    assert [problem.split(": ")[1] for problem in found] == key.split()


def test_one_topic_twice_and_two_formats_in_one_topic(tmp_path: Path) -> None:
    again = '[[topics]]\nname = "tips"\nmodel = "m"\nformat = "json"\n'
    found = problems(tmp_path, MINIMAL + again)
    assert [problem.split("; ")[0] for problem in found] == [
        "worker.toml: topics: tips: the topic stands 2 times",
        "worker.toml: topics[tips].scores: tips.scores: scores in json and msgpack in one topic",
    ]


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    kafka = KafkaConfig(bootstrap_servers="a:1", sasl_password="hunter2", ssl_password="hunter3")
    assert "hunter" not in repr(kafka)
    assert "hunter" not in repr(Config(kafka=kafka, topics=(TopicConfig(name="t", model="m"),)))


@pytest.mark.parametrize("struct", [KafkaConfig, TopicConfig, WorkerConfig, AdminConfig])
def test_every_key_is_documented(struct: type[msgspec.Struct]) -> None:
    documented = documentation(struct)
    assert list(documented) == [field.name for field in msgspec.structs.fields(struct)]
    assert all(text.endswith(".") for text in documented.values())


def test_the_example_is_current() -> None:
    text = (ROOT / "deploy/worker.toml").read_text()
    assert text == example(), "write it again: scorelane check --example > deploy/worker.toml"


def test_the_example_loads_and_its_comments_are_the_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, example())
    shown = tomllib.loads("\n".join(line.removeprefix("#") for line in example().splitlines() if line[:2] != "# "))
    for section in ("kafka", "worker", "admin"):
        assert shown[section] == msgspec.to_builtins(getattr(config, section))
    (topic,), (resolved,) = shown["topics"], config.topics
    derived = {"model": "models/tipping", "fallback": ["light"], "scores": "", "dead_letters": "", "score_format": ""}
    expected = msgspec.to_builtins(resolved) | derived
    # Tables inside a topic are shown with a first entry, where the default is to have none.
    tables = {key for key, value in topic.items() if isinstance(value, list) and value and isinstance(value[0], dict)}
    assert all(expected[key] == () for key in tables)
    assert {key: topic[key] for key in topic.keys() - tables} == {
        key: expected[key] for key in expected.keys() - tables
    }


# What aiokafka gets


def kafka(**values: object) -> KafkaConfig:
    return KafkaConfig(**{"bootstrap_servers": "a:1, b:2", **values})  # type: ignore[arg-type]


def test_plain_connections() -> None:
    assert kafka(client_id="me").client_args() == {
        "bootstrap_servers": ["a:1", "b:2"],
        "client_id": "me",
        "request_timeout_ms": 60_000,
        "metadata_max_age_ms": 60_000,
        "security_protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_and_password(mechanism: str, tmp_path: Path) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_username": "u"}
    expected = {"sasl_mechanism": mechanism, "sasl_plain_username": "u", "security_protocol": "SASL_PLAINTEXT"}
    args = kafka(**login, sasl_password="p").client_args()
    assert args.items() >= (expected | {"sasl_plain_password": "p"}).items()
    assert "ssl_context" not in args
    secret = tmp_path / "password"
    secret.write_text(" spaces stay \n")
    assert kafka(**login, sasl_password_file=str(secret)).client_args()["sasl_plain_password"] == " spaces stay "


def test_a_token_is_read_again_when_it_is_needed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_token_file": str(token)}
    args = kafka(**login).client_args()
    provider = args["sasl_oauth_token_provider"]
    assert asyncio.run(provider.token()) == "first"
    token.write_text("second\n")
    assert asyncio.run(provider.token()) == "second"
    assert isinstance(args["ssl_context"], ssl.SSLContext)
    token.write_text("\n")
    with pytest.raises(ConfigError, match=r"sasl_token_file: .*: the file is empty; write the token into it"):
        asyncio.run(provider.token())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate and its key, encrypted with "secret"."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -days 2 -subj /CN=client -passout pass:secret -keyout"
    try:
        subprocess.run([*command.split(), str(key), "-out", str(cert)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    return cert, key


def test_tls_verifies_brokers_and_shows_the_clients_certificate(certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    tls = {"security_protocol": "SSL", "ssl_cafile": cert, "ssl_certfile": cert, "ssl_keyfile": key}
    context = kafka(**tls, ssl_password="secret").client_args()["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert [ca["subject"] for ca in context.get_ca_certs()] == [((("commonName", "client"),),)]
    relaxed = kafka(**tls, ssl_password="secret", ssl_check_hostname=False).client_args()["ssl_context"]
    assert not relaxed.check_hostname
    assert relaxed.verify_mode == ssl.CERT_REQUIRED


def test_a_wrong_key_password_does_not_ask_on_the_terminal(certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    for password in ("", "wrong"):
        with pytest.raises(ConfigError, match=r"kafka\.ssl_certfile.*ssl_password"):
            kafka(security_protocol="SSL", ssl_certfile=cert, ssl_keyfile=key, ssl_password=password).client_args()


def test_unreadable_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.ssl_cafile: /none\.pem: No such file or directory; "):
        kafka(security_protocol="SSL", ssl_cafile="/none.pem").client_args()
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    with pytest.raises(ConfigError, match="not a PEM certificate; export it as PEM"):
        kafka(security_protocol="SSL", ssl_cafile=str(text)).client_args()
