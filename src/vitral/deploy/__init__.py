"""A model goes out into the world: to other libraries."""
