"""A tensor becomes logits. Knows nothing of files, data or training."""
