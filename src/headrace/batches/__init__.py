"""Keys to a batch: asks the dataset, deals with bad samples, collates, page-locks."""
