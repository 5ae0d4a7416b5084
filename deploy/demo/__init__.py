"""The main job, end to end: a training that lends, a fill in its bubbles, and the record of it."""
