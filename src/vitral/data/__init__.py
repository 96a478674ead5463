"""Pictures become batches. Knows nothing of models."""
