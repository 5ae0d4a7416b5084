"""What agents and the controller say to each other: messages and munge credentials.

This is the one package that the agent shares with the rest; it imports nothing else of ours.
"""
