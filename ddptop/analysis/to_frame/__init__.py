"""Frames from the state: medians are taken here, when a viewer asks for a frame."""
