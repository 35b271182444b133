"""What the keys do: small classes of actions, mixed into the application. None of them imports Textual."""
