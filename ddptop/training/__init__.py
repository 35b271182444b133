"""What runs inside the training process: the recorder, its two ways in, and the publisher thread."""
