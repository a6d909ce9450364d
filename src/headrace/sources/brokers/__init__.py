"""Where records come from: Kafka, Redis, RabbitMQ, and sockets."""
