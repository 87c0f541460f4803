"""TLS, SASL and tokens: from the configuration to what aiokafka's clients and the webhook take."""

import ssl
from pathlib import Path
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from worker.config import ConfigError, KafkaConfig, Problem
from worker.config_quality import AlarmConfig


def client_args(kafka: KafkaConfig) -> dict[str, Any]:
    """See `KafkaConfig.client_args`."""
    args: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in kafka.bootstrap_servers.split(",")],
        "client_id": kafka.client_id,
        "request_timeout_ms": kafka.request_timeout_ms,
        "metadata_max_age_ms": kafka.metadata_max_age_ms,
        "security_protocol": kafka.security_protocol,
    }
    if "SSL" in kafka.security_protocol:
        args["ssl_context"] = ssl_context(kafka)
    if kafka.security_protocol.startswith("SASL"):
        args["sasl_mechanism"] = kafka.sasl_mechanism
        if kafka.sasl_mechanism == "OAUTHBEARER":
            provider = TokenFile(Path(kafka.sasl_token_file))
            provider.read()
            args["sasl_oauth_token_provider"] = provider
        else:
            args["sasl_plain_username"] = kafka.sasl_username
            args["sasl_plain_password"] = _password(kafka)
    return args


def ssl_context(kafka: KafkaConfig) -> ssl.SSLContext:
    """A client's context: the brokers are verified, the client's certificate is loaded where one is named.

    Raises `ConfigError` naming the file.
    """
    context = ssl.create_default_context()
    if kafka.ssl_cafile:
        _readable("kafka.ssl_cafile", kafka.ssl_cafile)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cafile=kafka.ssl_cafile)
        except ssl.SSLError as error:
            raise _error("kafka.ssl_cafile", kafka.ssl_cafile, "not a PEM certificate", "export it as PEM") from error
    context.check_hostname = kafka.ssl_check_hostname
    if kafka.ssl_certfile:
        _readable("kafka.ssl_certfile", kafka.ssl_certfile)
        if kafka.ssl_keyfile:
            _readable("kafka.ssl_keyfile", kafka.ssl_keyfile)
        try:
            # A password is always given: without one OpenSSL would ask for it on the terminal.
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile or None, password=kafka.ssl_password)
        except ssl.SSLError as error:
            problem = f"certificate and key do not load ({error.reason or 'wrong password?'})"
            remedy = "check that both are PEM, belong together, and ssl_password"
            raise _error("kafka.ssl_certfile", kafka.ssl_certfile, problem, remedy) from error
    return context


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """The bearer token in a file that something else keeps fresh (a projected service account, a sidecar)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """The token as it stands in the file now. aiokafka asks at each connection; the file is tens of bytes."""
        return self.read()

    def read(self) -> str:
        """Raises `ConfigError` when there is no token."""
        return _token("kafka.sasl_token_file", str(self._path))


def webhook_tokens(alarms: AlarmConfig) -> list[str]:
    """See `AlarmConfig.webhook_tokens`."""
    return [_token("alarms.webhook_token_file", alarms.webhook_token_file)] if alarms.webhook_token_file else []


def _password(kafka: KafkaConfig) -> str:
    if kafka.sasl_password:
        return kafka.sasl_password
    return _readable("kafka.sasl_password_file", kafka.sasl_password_file).removesuffix("\n").removesuffix("\r")


def _token(key: str, path: str) -> str:
    token = _readable(key, path).strip()
    if not token:
        raise _error(key, path, "the file is empty", "write the token into it")
    return token


def _readable(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise _error(key, path, error.strerror or str(error), "name a file that this user can read") from error


def _error(key: str, value: str, problem: str, remedy: str) -> ConfigError:
    return ConfigError([Problem("", key, value, problem, remedy)])
