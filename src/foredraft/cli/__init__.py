"""The command line: parse, build options, call. Nothing is decided here."""
