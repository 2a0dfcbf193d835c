"""Published comparisons, run on this machine beside the figures that were published."""
