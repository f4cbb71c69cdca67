"""The built-in tasks: examples of what users write, one file each. A `-` in a task's name is a `_` in its file's."""
