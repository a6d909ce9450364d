"""What is measured while batches are made: the record that reports and findings are drawn from."""
