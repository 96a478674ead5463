"""How good a trained model is, and where it is wrong."""
