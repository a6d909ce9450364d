"""What `headrace demo` shows: short scenes, each of which is checked where it runs and may be run alone.

A scene runs the same few lines with torch's loader, with torchdata's where it is installed, and with headrace's, each
in a process of its own, and returns what happened. `scenes.py` lists them.
"""
