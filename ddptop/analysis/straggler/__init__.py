"""Who is slow, since when, by how much, and what it costs."""
