"""sfilld, the agent on each GPU node, and the interposer it hands out boards to."""

VERSION = "0.1.0"
