"""The main job from end to end on an example project."""
