"""One thin file a dialect: parse the body, call the engine, format the answer."""
