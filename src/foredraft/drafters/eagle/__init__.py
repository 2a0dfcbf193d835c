"""EAGLE heads: one decoder layer that drafts from the target's own hidden states."""
