"""The monitor: a log from the field against what must hold of every engine, event by event."""
