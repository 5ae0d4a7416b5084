"""sfillctld: publishes supply to Slurm, takes in what agents report, is the database's writer."""
