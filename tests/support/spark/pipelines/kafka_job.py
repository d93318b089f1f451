"""Numbers from one Kafka topic to another, for tests that kill the driver: endless, or bounded when BOUNDED is set."""

from __future__ import annotations

import os

from tests.support.spark.kafka_jobs import numbers

pipeline = numbers(
    os.environ["STROBE_TEST_KAFKA"], os.environ["NUMBERS_IN"], os.environ["NUMBERS_OUT"],
    bounded=bool(os.environ.get("BOUNDED")), interval=0.5, delivery=os.environ.get("DELIVERY", "on_snapshot"),
)  # fmt: skip
