"""What travels: messages, their msgpack form and its limits. Imports nothing else of ddptop."""
