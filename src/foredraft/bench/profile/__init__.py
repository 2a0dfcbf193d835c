"""Where the time of one round goes, stage by stage, against the floor that memory sets."""
