"""`sfill`: what users, operators and auditors ask on the command line."""
