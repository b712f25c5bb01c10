"""Training: recipes, losses, optimisers, checkpoints, several processes, and the loop."""
