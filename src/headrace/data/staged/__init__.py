"""Steps on samples: computed once or at each access, with a cut that can be moved."""
