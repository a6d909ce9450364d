"""What other tools write: small files, each with what the tool itself reads back."""
