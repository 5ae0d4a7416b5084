"""Tests against a real Slurm, booted in a sandbox with simulated GPUs."""
