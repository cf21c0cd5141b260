"""The web user interface: from an alert to the bundle in two clicks. `app.build_app` makes it."""
