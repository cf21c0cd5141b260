"""From a convicted capture to the least that shows the same fault (`minimise`), with nothing of anybody's content in it
where the fault allows (`reproducer`)."""
