"""The page at the server's root: plain files that the browser gets as they are."""
