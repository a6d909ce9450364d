"""Words shared by all stages: errors, and the parts of torch that the drop-in depends on."""
