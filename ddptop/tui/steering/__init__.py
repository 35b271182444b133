"""What the keys do: small classes of actions that are mixed into the application. None of them knows Textual."""
