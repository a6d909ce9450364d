"""Which sample next: pure functions of (seed, epoch, position), and the samplers over them."""
