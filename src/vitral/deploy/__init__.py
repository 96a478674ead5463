"""Models for other libraries: converted weights and their model cards."""
