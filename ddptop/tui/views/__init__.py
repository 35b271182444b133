"""Views: functions from a scene and a size to lines."""
