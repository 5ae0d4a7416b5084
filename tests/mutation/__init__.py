"""Shows that every rule of the gate and the monitor has a test that notices when it is broken."""
