"""The simulated GPU: C sources of a stand-in driver, and the reader of its log."""
