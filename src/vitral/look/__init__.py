"""What the model looked at, and pictures of it."""
