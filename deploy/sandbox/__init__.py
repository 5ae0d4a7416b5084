"""Boots a real Slurm with our plugin and daemons in one folder, for tests and the demo."""
