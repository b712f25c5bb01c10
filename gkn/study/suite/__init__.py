"""The suite: many problems, many models, one way to train them."""
