"""Messages of queues and sockets, kept on the disk under numbers, which makes a log of them."""
