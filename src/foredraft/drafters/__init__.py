"""Whatever proposes drafts."""
