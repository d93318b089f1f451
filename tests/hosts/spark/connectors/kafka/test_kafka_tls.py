"""A broker that wants TLS and SCRAM: one set of settings serves sink and source, though their clients differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.live.wire.tls import Tls
from strobe.model.errors import Failed
from tests.hosts.spark.connectors.kafka.test_kafka_sink import deliver, opened, rows
from tests.services import Server
from tests.support.live.certificates import certificates
from tests.support.spark.kafka_world import QUIET, new_topic

pytestmark = [pytest.mark.spark, pytest.mark.services("kafka"), pytest.mark.slow]

USER, PASSWORD = "ledger", "scram-password-for-tests"
MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, tls: Tls) -> Iterator[Server]:
    """Its second listener speaks TLS, with SCRAM; the first is for setting up."""
    folder = tmp_path_factory.mktemp("broker")
    store = folder / "broker.pem"
    store.write_text(Path(tls.key).read_text() + Path(tls.certificate).read_text())
    secure = "listener.name.sasl_plaintext"
    login = "'org.apache.kafka.common.security.scram.ScramLoginModule required;'"
    options = (
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT "
        f"{secure}.sasl.enabled.mechanisms={','.join(MECHANISMS)} "
        f"{secure}.ssl.keystore.type=PEM {secure}.ssl.keystore.location={store} "
        + " ".join(f"{secure}.{name.lower()}.sasl.jaas.config={login}" for name in MECHANISMS)
    )
    with Server("kafka", folder, {"STROBE_KAFKA_OPTIONS": options}) as server:
        admin = AdminClient({"bootstrap.servers": server.address, **QUIET})
        for mechanism in MECHANISMS.values():
            wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            admin.alter_user_scram_credentials([wanted])[USER].result(30)
        yield server


def secure(tls: Tls, mechanism: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD,
        "ssl.ca.location": tls.authority,
    }  # fmt: skip


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sink_and_source_pass_through_tls_and_scram(
    spark: SparkSession, broker: Server, tls: Tls, tmp_path: Path, mechanism: str
) -> None:
    servers = (broker.folder / "sasl").read_text().strip()
    topic, frame = new_topic(broker.address), rows(spark, (1, "secret"))
    deliver(opened(strobe.KafkaSink(servers, topic, options=secure(tls, mechanism)), frame, tmp_path), frame)
    messages = strobe.read_kafka(spark, servers, topic, security=secure(tls, mechanism))
    query = messages.writeStream.format("memory").queryName("heard").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)
    assert [json.loads(bytes(r["value"])) for r in spark.table("heard").collect()] == [{"n": 1, "text": "secret"}]


def test_a_broker_whose_certificate_nobody_vouches_for_is_refused_at_the_start(
    spark: SparkSession, broker: Server, tls: Tls, tmp_path: Path
) -> None:
    servers = (broker.folder / "sasl").read_text().strip()
    topic, frame = new_topic(broker.address), rows(spark, (1, "secret"))
    strangers = secure(certificates(tmp_path / "other", "somebody else"), "SCRAM-SHA-512")
    for attempt in (
        lambda: opened(strobe.KafkaSink(servers, topic, options=strangers), frame, tmp_path / "sink"),
        lambda: strobe.read_kafka(spark, servers, topic, security=strangers),
    ):
        with pytest.raises(Failed, match="certificate") as caught:
            attempt()
        assert PASSWORD not in f"{caught.value} {caught.value!r}"
