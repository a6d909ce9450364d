"""One epoch: which index comes next, what was delivered, and the state of both."""
