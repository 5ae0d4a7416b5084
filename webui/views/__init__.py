"""One file a view: its page, and the JSON that the page draws."""
