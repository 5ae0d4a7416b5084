"""A training and fills under a storm of kills, stops and restarts; afterwards all must add up."""
